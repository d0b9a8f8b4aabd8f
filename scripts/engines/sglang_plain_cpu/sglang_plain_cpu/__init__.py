"""SGLang on PyTorch's own operators, on any CPU; SGLang asks for it through its entry points `sglang.srt.platforms`."""


def activate() -> str:
    """Where the platform is, as SGLang asks; it imports that later, when its own modules are whole."""
    return "sglang_plain_cpu.platform.PlainCpu"
