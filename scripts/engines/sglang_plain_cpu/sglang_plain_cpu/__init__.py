"""SGLang on PyTorch's own operators, on any CPU; SGLang asks for it through its entry points `sglang.srt.platforms`."""


def activate() -> str:
    """Import path of the platform class. SGLang imports the class later, after its own modules are loaded."""
    return "sglang_plain_cpu.platform.PlainCpu"
