"""Which requests a planted HTTP fault hits, and where in their answer."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pytest_llmperf.emulator.faults import Faults

FaultKind = Literal["refused", "limited", "error", "hang", "truncated"]


@dataclass(frozen=True, slots=True)
class HttpFault:
    """A bad end.

    Args:
        kind: refused: HTTP 500; limited: HTTP 429; error: an error event in the stream; hang: silence; truncated: a
            close without end.
        after_tokens: how many tokens of the request come before it.
    """

    kind: FaultKind
    after_tokens: int


def http_fault_of(faults: Faults, seed: int, number: int, max_tokens: int) -> HttpFault | None:
    """What happens to request `number`; None: it is served. A fixed function of the seed and the number."""
    if not (faults.errors or faults.hangs or faults.truncated or faults.limited):
        return None
    random = Random(f"{seed} {number}")
    drawn = random.random()
    after = random.randrange(max_tokens)
    if drawn < faults.errors:
        return HttpFault("refused", 0) if drawn < faults.errors / 2 else HttpFault("error", after)
    if drawn < faults.errors + faults.hangs:
        return HttpFault("hang", after)
    if drawn < faults.errors + faults.hangs + faults.truncated:
        return HttpFault("truncated", after)
    if drawn < faults.errors + faults.hangs + faults.truncated + faults.limited:
        return HttpFault("limited", 0)
    return None
