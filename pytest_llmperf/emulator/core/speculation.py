"""How many drafts a verification accepts."""

from __future__ import annotations

import numpy as np

from pytest_llmperf.emulator.config import Speculation

_DRAWS = 1 << 16


class Acceptance:
    """Draws accepted drafts: position i with its own probability, given that all before it were accepted.

    What is accepted follows from the text, as with a greedy model: equal keys draw alike, on every start.
    """

    def __init__(self, speculation: Speculation) -> None:
        rates = list(speculation.acceptance[: speculation.draft_tokens])
        rates += [rates[-1] if rates else 0.0] * (speculation.draft_tokens - len(rates))
        reach = np.cumprod(rates)[::-1]  # of at least k, k−1, …, 1 drafts; growing
        uniform = np.random.default_rng(0x5BEC).random(_DRAWS)
        self._drawn: list[int] = (len(reach) - np.searchsorted(reach, uniform, side="right")).tolist()

    def draw(self, key: int, drafts: int) -> int:
        """Accepted ones among so many proposed ones."""
        accepted = self._drawn[key % _DRAWS]
        return accepted if accepted < drafts else drafts
