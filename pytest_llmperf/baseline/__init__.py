"""Baselines: content and place of the files, atomic writes, and the plan of an update."""
