"""An emulated inference server: real scheduling, modelled step times, no GPU.

    cost      how long a step takes and how much KV cache fits: a roofline with fitted coefficients
    core      continuous batching by vLLM's rules: budget, queues, blocks, preemption, speculation
    cache     SGLang's radix tree; tiers below the GPU's memory
    cluster   several engines behind a router; prefill apart from decode
    flags     the engines' own command lines
    virtual   the core on a clock that only jumps
    http      the core in real time behind an OpenAI-compatible server

It stands apart from the rest of the package: it imports none of it and is named only in command lines, so that an error
in the client's framing or in its formulas cannot cancel itself out here.
"""
