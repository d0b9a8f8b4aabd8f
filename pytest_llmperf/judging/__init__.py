"""Measurements, baselines and demands in; results with a cause out. Nothing here starts, sends or reads files."""
