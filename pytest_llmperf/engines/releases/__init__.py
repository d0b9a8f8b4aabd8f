"""Releases of engines, read from their wheels, and what changed between two of them."""
