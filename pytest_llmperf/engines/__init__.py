"""Inference servers: engine specs, launch, and control requests.

`spec` describes a server. `environment` finds the installation of the engine. An adapter (`vllm_adapter`,
`sglang_adapter`) knows the arguments, routes and counters of an engine. `launch` starts a server and checks its
identity. `pool` shares servers between tests.
"""
