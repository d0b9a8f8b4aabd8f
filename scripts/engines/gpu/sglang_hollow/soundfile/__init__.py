"""Hollow: SGLang asks for audio formats when it is imported, and speech is not served here."""


def available_formats() -> dict[str, str]:
    """No formats."""
    return {}
