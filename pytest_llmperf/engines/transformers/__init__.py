"""Hugging Face `generate` in static batches: spec, adapter, and the server itself."""
