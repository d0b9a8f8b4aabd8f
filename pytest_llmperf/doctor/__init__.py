"""The checks of `llmperf doctor`: this machine, the engines, the models, the baselines. No check starts a server.

Each part returns findings. A finding that is a problem names its remedy.
"""
