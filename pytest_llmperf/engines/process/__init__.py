"""Servers as processes: where an engine is installed, how it is started, shared and stopped."""
