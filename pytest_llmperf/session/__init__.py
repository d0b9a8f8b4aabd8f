"""Measure, judge, summarise. Knows engines, load and verdicts, and nothing of pytest."""
