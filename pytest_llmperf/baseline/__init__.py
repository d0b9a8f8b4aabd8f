"""Stored measurements to compare with: what a file holds, where it lies, how it is written, and what an update does."""
