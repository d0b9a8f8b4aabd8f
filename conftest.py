"""Fixtures of this repository's own tests. pytest wants `pytest_plugins` in the root conftest.py."""

pytest_plugins = ["pytester"]
