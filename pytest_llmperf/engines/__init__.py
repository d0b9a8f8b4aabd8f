"""Inference servers, with a folder for each engine and a folder for each idea that engines share.

`vllm/`, `sglang/`, `transformers/`, `lmcache/` and `endpoint/` contain spec, arguments, routes, counters and retired
names of one engine. `process/` finds an installation, starts a server and stops the server. `control/` sends control
requests. `memory/` shares a GPU. `models/` builds and finds models. `accuracy/` asks questions of a task.
"""
