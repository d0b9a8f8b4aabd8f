"""Servers as supervised process trees: every process of a server ends with the pytest session that started the server.

Kept free of imports: the watchdog loads this package by path, without site-packages.
"""
