"""Inference servers: what to start, how to start it, and how to read it.

`spec` says what; `environment` finds the installation; an adapter (`vllm_adapter`, `sglang_adapter`) knows one
engine's arguments, routes and counters; `launch` starts a server and proves that it is ours; `pool` shares it.
"""
