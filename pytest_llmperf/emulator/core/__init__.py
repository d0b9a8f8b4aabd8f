"""Continuous batching: what runs in which step."""
