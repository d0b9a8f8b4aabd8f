"""LMCache below an engine: server, settings, and the proof that LMCache has hits."""
