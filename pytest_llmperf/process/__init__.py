"""Servers as supervised process trees: nothing of them outlives the run that started them.

Kept free of imports: the watchdog loads this package by path, without site-packages.
"""
