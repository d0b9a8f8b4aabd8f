"""KV cache that is kept for later: SGLang's radix tree, and tiers below the GPU's memory."""
