"""Inference: what a sample proves, and what it does not. Values in, values out."""
