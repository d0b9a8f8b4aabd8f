"""Fitting and checking the emulator's step times against measured serving runs."""
