"""An emulated inference server: real scheduling, modelled step times, no GPU.

    cost      how long a step takes and how much KV cache fits: a roofline with fitted coefficients.
    core      continuous batching by vLLM's rules: budget, queues, blocks, preemption, speculation.
    cache     SGLang's radix tree; KV cache tiers below GPU memory.
    cluster   several engines behind a router; prefill and decode on separate engines.
    flags     the command lines of vLLM and SGLang.
    virtual   the core in virtual time.
    http      the core in real time behind an OpenAI-compatible server.

The emulator imports no other folder of the package, and other folders name the emulator only in command lines. So an
error in the client's framing or formulas cannot cancel itself out in the emulator.
"""
