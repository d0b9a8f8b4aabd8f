"""Judges measurements by requirements and baselines; each result has a cause. Judges start and read nothing."""
