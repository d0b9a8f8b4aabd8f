"""How many drafts a verification accepts."""

from __future__ import annotations

import numpy as np

from pytest_llmperf.emulator.config import Speculation

_BLOCK = 4096


class Acceptance:
    """Draws accepted drafts: position i with its own probability, given that all before it were accepted.

    Args:
        seed: equal seeds give equal draws, in the order in which they are asked for.
    """

    def __init__(self, speculation: Speculation, seed: int) -> None:
        rates = list(speculation.acceptance[: speculation.draft_tokens])
        rates += [rates[-1] if rates else 0.0] * (speculation.draft_tokens - len(rates))
        self._reach = np.cumprod(rates)[::-1]  # of at least k, k−1, …, 1 drafts; growing
        self._random = np.random.default_rng((seed, 0x5BEC))
        self._drawn: list[int] = []

    def draw(self, drafts: int) -> int:
        """Accepted ones among so many proposed ones."""
        if not self._drawn:
            uniform = self._random.random(_BLOCK)
            missed = np.searchsorted(self._reach, uniform, side="right")
            self._drawn = (len(self._reach) - missed).tolist()
        accepted = self._drawn.pop()
        return accepted if accepted < drafts else drafts
