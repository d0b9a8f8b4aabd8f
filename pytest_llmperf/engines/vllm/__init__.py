"""vLLM: spec, arguments, routes, counters and retired names."""
