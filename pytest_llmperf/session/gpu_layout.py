"""A comparison of two builds on several GPU sets of a host at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_llmperf.judging.reference_comparison import REFERENCE_LOOKS
from pytest_llmperf.model.engine import EngineSpec

#: Pairs on each GPU set in a round, after which the comparison is judged. Each round starts the servers anew.
PAIRS_OF_ROUND = 3
#: Share of α that is spent after each round.
ROUND_SHARES = (0.4, 0.8, 1.0)
#: A candidate and a reference whose runs form pairs.
Pair = tuple[EngineSpec, EngineSpec]


@dataclass(frozen=True, slots=True)
class GpuLayout:
    """The GPU sets of a comparison. A set has the GPUs of one server.

    Args:
        sets: numbers of the sets.
        exchanged: whether each build has a set alone, and the builds exchange their sets; otherwise each set has a
            server of both builds.
    """

    sets: tuple[int, ...] = (0,)
    exchanged: bool = False

    @property
    def looks(self) -> Mapping[int, float]:
        """Number of pairs at each look → the share of α that is spent by then."""
        if len(self.sets) == 1:
            return REFERENCE_LOOKS
        return {PAIRS_OF_ROUND * len(self.sets) * (number + 1): share for number, share in enumerate(ROUND_SHARES)}

    def placements(self, candidate: EngineSpec, reference: EngineSpec) -> list[list[Pair]]:
        """The pairs of servers that run at the same time, for each placement of the builds on the sets."""
        if not self.exchanged:
            return [[(replace(candidate, gpu_set=number), replace(reference, gpu_set=number)) for number in self.sets]]
        neighbours = list(zip(self.sets[::2], self.sets[1::2], strict=True))
        return [[(replace(candidate, gpu_set=first), replace(reference, gpu_set=second)) for first, second in sets]
                for sets in (neighbours, [(second, first) for first, second in neighbours])]


def turns_of(pairs: Sequence[Pair]) -> Iterator[list[tuple[int, int, int]]]:
    """The runs that are made at the same time, turn by turn, as number of the pair of servers, side (0: candidate) and
    number of the pair of runs.

    Two builds on one GPU set take turns, and neighbouring sets begin with different builds. On two sets both builds
    run at the same time.
    """
    lanes, exchanged = range(len(pairs)), pairs[0][0].gpu_set != pairs[0][1].gpu_set
    for number in range(PAIRS_OF_ROUND):
        if exchanged:
            yield [(lane, side, number) for lane in lanes for side in (0, 1)]
        else:
            yield from ([(lane, (lane + number + half) % 2, number) for lane in lanes] for half in (0, 1))
