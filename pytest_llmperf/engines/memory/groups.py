"""Decides how servers that are measured in turn run: all awake, one awake and the others asleep, or one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_llmperf.engines.memory.shares import Shares
from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.status import Note, Notify

#: Specs that should live together, and whether all but one sleep → the same specs with the flags that this takes, or
#: the reason why they cannot live together so.
ShareMemory = Callable[[Sequence[EngineSpec], bool], Shares | str]


def never_together(_specs: Sequence[EngineSpec], _sleep: bool) -> str:
    """Servers that take the whole machine each."""
    return "one server runs at a time"


#: Each spec → the same spec as it is started, and the sizes for people; or a reason.
_Planned = tuple[dict[EngineSpec, EngineSpec], str] | str


@dataclass(frozen=True, slots=True)
class Group:
    """Servers that live together.

    Args:
        started: each spec that was asked for → the same spec as it is started.
        in_turn: whether one of them is awake at a time and the others sleep.
    """

    started: Mapping[EngineSpec, EngineSpec]
    in_turn: bool = False


class GroupPlans:
    """Plans groups of servers. The plan for the same specs never changes within a session, so that a second start of a
    server has the flags of the first. Each plan and its reason are passed to `notify` once.

    Args:
        share_memory: how specs share the memory.
        check: raises SpecError for a spec that cannot be started.
        notify: receives each plan as a note.
    """

    def __init__(self, share_memory: ShareMemory, check: Callable[[EngineSpec], None], notify: Notify) -> None:
        self._share_memory = share_memory
        self._check = check
        self._notify = notify
        self._shares: dict[tuple[frozenset[EngineSpec], str | None, bool], _Planned] = {}
        self._sleepless: dict[EngineSpec, str] = {}  # specs whose servers did not take turns → why
        self._lines: set[str] = set()

    def group(self, planted: Mapping[EngineSpec, EngineSpec]) -> Group:
        """The plan for the first spec: which specs run together. Of three specs that do not fit, the first two may fit.
        A plan in which all servers stay awake is preferred.

        Args:
            planted: each spec that was asked for, the most important first → the same spec as it is started alone.
        """
        requested, alone = list(planted), list(planted.values())
        reasons: dict[int, str] = {}
        for in_turn in (False, True):
            for count in range(len(requested), 1, -1):
                shares = self._together(alone[:count], in_turn=in_turn)
                if not isinstance(shares, str):
                    self._note_shares(shares, reasons.get(count, ""), in_turn=in_turn)
                    return Group(dict(zip(requested, shares.specs, strict=False)), in_turn)
                if not in_turn:
                    reasons[count] = shares
                    continue
                also = "" if shares == reasons[count] else f". They do not sleep in turn: {shares}"
                self._note_once(f"{count} servers do not run at the same time: {reasons[count]}{also}.")
        return Group({requested[0]: alone[0]})

    def reason_apart(self, planted: Mapping[EngineSpec, EngineSpec], *, in_turn: bool) -> str:
        """Why servers of all these specs cannot live together: awake, or all but one asleep; "" if they can. The
        reason is told once.

        Args:
            planted: as in `group`.
            in_turn: whether all but one sleep.
        """
        shares = self._together(list(planted.values()), in_turn=in_turn)
        if isinstance(shares, str):
            self._note_once(f"{len(planted)} servers do not {'take turns' if in_turn else 'run at the same time'}: "
                            f"{shares}.")
            return shares
        return ""

    def give_up_turns(self, specs: Iterable[EngineSpec], why: str) -> None:
        """Servers of these specs, as they are started alone, take no turns any more in this session."""
        self._sleepless |= dict.fromkeys(specs, f"an earlier try failed: {why}".removesuffix("."))
        self._note_once(f"The servers do not take turns, and each starts alone: {why}")

    def _together(self, planted: Sequence[EngineSpec], *, in_turn: bool) -> Shares | str:
        """The specs as they are started together, or the reason why they cannot be."""
        if in_turn and (failed := next((self._sleepless[spec] for spec in planted if spec in self._sleepless), None)):
            return failed
        key = frozenset(planted), planted[0].kind, in_turn
        if key not in self._shares:
            self._shares[key] = self._planned(planted, in_turn=in_turn)
        shares = self._shares[key]
        if isinstance(shares, str):
            return shares
        started, text = shares
        return Shares(tuple(started[spec] for spec in planted), text)

    def _planned(self, planted: Sequence[EngineSpec], *, in_turn: bool) -> _Planned:
        shares = self._share_memory(planted, in_turn)
        if isinstance(shares, str):
            return shares
        if in_turn:
            try:
                for each in shares.specs:
                    self._check(each)
            except SpecError as error:  # a version without such a mode has no such flag
                return str(error).removesuffix(".")
        return dict(zip(planted, shares.specs, strict=True)), shares.text

    def _note_shares(self, shares: Shares, reason: str, *, in_turn: bool) -> None:
        sizes = f"; {shares.text}" if shares.text else ""
        if in_turn:
            self._note_once(f"{len(shares.specs)} servers take turns, one is awake and the others sleep: "
                            f"{reason}{sizes}.")
        elif sizes:
            sets = len({spec.gpu_set for spec in shares.specs})
            where = "the GPU" if sets == 1 else f"each of {sets} GPU sets"
            self._note_once(f"{len(shares.specs) // sets} servers share {where}{sizes}.")

    def _note_once(self, line: str) -> None:
        if line not in self._lines:
            self._lines.add(line)
            self._notify(Note(line))
