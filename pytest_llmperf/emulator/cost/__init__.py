"""How long a step takes, and how much KV cache fits."""
