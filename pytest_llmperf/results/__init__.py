"""Measurements and check results as values, and the run folder with its only writer and its only reader."""
