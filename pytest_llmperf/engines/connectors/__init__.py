"""Connectors: what moves KV cache from a prefill server to a decode server, a file each, and their door."""
