"""Independent random streams from one seed."""

from __future__ import annotations

import hashlib
from random import Random


def derive(seed: int, *names: object) -> int:
    """A 128-bit seed for the stream called `names`: first half of SHA-256 over the names joined by "/"."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")


def stream(seed: int, *names: object) -> Random:
    """The generator of one stream: what one stream draws never moves another.

    Draw only through `random`, `getrandbits` and `randbytes`: these three are the same in every Python version.
    """
    return Random(derive(seed, *names))


def uniform_int(rng: Random, low: int, high: int) -> int:
    """An integer from low to high, both included."""
    return low + int(rng.random() * (high - low + 1))
