"""The price of a GPU hour: an amount with its currency and date."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from math import isfinite

from pytest_llmperf.errors import ConfigError

EXAMPLE = '"2.50 USD 2026-11-01"'
_CURRENCY = re.compile(r"[A-Z]{3}")


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """What one GPU costs for one hour.

    Args:
        amount: above 0, in the currency.
        currency: three capital letters (ISO 4217).
        day: the day of the price, ISO 8601.
    """

    amount: float
    currency: str
    day: str

    def __str__(self) -> str:
        return f"{self.amount:g} {self.currency} {self.day}"


def read_gpu_price(text: object) -> GpuPrice:
    """Read "AMOUNT CURRENCY DATE".

    Raises:
        ConfigError: the text is no price; the message says which part is wrong.
    """
    words = text.split() if isinstance(text, str) else []
    if isinstance(text, int | float) or (len(words) == 1 and _amount(words[0]) is not None):
        raise ConfigError(f"lacks a currency and a date: write {EXAMPLE}")
    if len(words) not in (2, 3):
        raise ConfigError(f"must be amount, currency and date of a GPU hour: {EXAMPLE}")
    amount = _amount(words[0])
    if amount is None:
        raise ConfigError(f"{words[0]!r} is no number: write {EXAMPLE}")
    if amount <= 0:
        raise ConfigError(f"a GPU hour must cost more than 0, got {words[0]}: write {EXAMPLE}")
    if not _CURRENCY.fullmatch(words[1]):
        raise ConfigError(f"{words[1]!r} is no currency of three capital letters: write {EXAMPLE}")
    if len(words) == 2:
        raise ConfigError(f"lacks the date of the price: write {EXAMPLE}")
    return GpuPrice(amount, words[1], _day(words[2]))


def _amount(word: str) -> float | None:
    try:
        amount = float(word)
    except ValueError:
        return None
    return amount if isfinite(amount) else None


def _day(word: str) -> str:
    try:
        return date.fromisoformat(word).isoformat()
    except ValueError:
        raise ConfigError(f"{word!r} is no date such as 2026-11-01") from None
