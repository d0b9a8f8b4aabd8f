"""Hollow: SGLang has displays for notebooks."""
