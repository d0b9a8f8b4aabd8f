"""Experiments of several pytest sessions: which build changed a test, and which faults a suite notices."""
