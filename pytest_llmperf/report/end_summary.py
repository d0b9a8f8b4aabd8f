"""What a session found, on one screen: a verdict per test with the number that decided it, then what to do next."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_llmperf.model.verdict import Verdict

MOST_LINES = 10  # of tests: with the next steps and pytest's own last lines that still fits 24
MOST_ALONE = 18  # where there is nothing to do next
MOST_STEPS = 3   # of one kind
RATIO = " / "
SEEN = "(would have seen "
INTERVAL = re.compile(r" \d[\d.]* % CI .*")
GOOD = (Verdict.PASS.value, Verdict.IMPROVED.value)


@dataclass(frozen=True, slots=True)
class Ended:
    """How one test ended.

    Args:
        test: its id.
        verdict: the worst of its checks, or "ERROR" or "USAGE" where it was cut short.
        checks: "FAIL: ttft_p99 <= 60ms: 61.2 ms 95 % CI 60.3–62 ms", in their order.
        error: what cut it short, with the evidence; "" where nothing did.
        run: the run folder, from where the user is; "" where nothing was measured.
    """

    test: str
    verdict: str
    checks: tuple[str, ...] = ()
    error: str = ""
    run: str = ""

    @property
    def decided_by(self) -> str:
        """The number of the check that spoke, then the check.

        A claim before the mechanisms around it; a comparison, which says what it would have seen, before SLOs.
        """
        if self.error:
            return self.error.partition("\n")[0]
        start = f"{self.verdict}: "
        spoke = [check.removeprefix(start) for check in self.checks if check.startswith(start)]
        telling = [*(check for check in spoke if RATIO in check), *(check for check in spoke if SEEN in check), *spoke]
        chosen = telling[0] if telling else ""
        subject, _, found = chosen.partition(": ")
        number = INTERVAL.sub("", found)
        return f"{number}  {subject}" if number not in ("", "-") else subject

    @property
    def log(self) -> str:
        """Where the server's whole log lies, as the evidence says; "" where there is none."""
        lines = self.error.splitlines()
        return next((line.removeprefix("log: ") for line in lines if line.startswith("log: ")), "")


def summary(ended: Sequence[Ended], options: Sequence[str], width: int, *, every: bool = False) -> list[str]:
    """The lines of the summary; none where no performance test ran.

    Args:
        options: what a pytest command must repeat to run the same tests in the same way.
        width: of the terminal, in columns; commands are never cut.
        every: show each test, however many there are.
    """
    if not ended:
        return []
    ordered = sorted(ended, key=lambda one: -_severity(one.verdict))
    steps = list(next_steps(ordered, options))
    shown = ordered if every or len(ordered) <= (MOST_LINES if steps else MOST_ALONE) else _folded(ordered)
    column = max(len(one.verdict) for one in ordered)
    names = max((len(short(one.test)) for one in shown), default=0)
    names = min(names, width // 2 - column)
    lines = [
        cut(f"{one.verdict:<{column}}  {cut(short(one.test), names):<{names}}  {one.decided_by}".rstrip(), width)
        for one in shown
    ]
    if left_out := [one.verdict for one in ordered if one not in shown]:
        lines.append(f"{'…':<{column}}  and {_counts(left_out)}; each of them with -v")
    return [*lines, *(["next:"] if steps else []), *(f"  {step}" for step in steps)]


def counts(ended: Iterable[Ended]) -> str:
    """"1 FAIL, 7 PASS"."""
    return _counts(sorted((one.verdict for one in ended), key=lambda verdict: -_severity(verdict)))


def next_steps(ended: Iterable[Ended], options: Sequence[str]) -> Iterator[str]:
    """The command for each thing that is open, worst first; one for all tests that need the same."""
    by_verdict: dict[str, list[Ended]] = {}
    for one in ended:
        by_verdict.setdefault(one.verdict, []).append(one)
    for verdict, tests in by_verdict.items():
        if verdict == Verdict.ERROR.value:
            yield from _bounded([f"less {shlex.quote(log)}" for log in dict.fromkeys(one.log for one in tests) if log])
        elif verdict == Verdict.FAIL.value:
            yield from _bounded([shlex.join(("llmperf", "show", one.run, short(one.test))) for one in tests if one.run])
        elif verdict in AGAIN:
            yield _pytest(tests, options, AGAIN[verdict])


AGAIN = {
    Verdict.NO_BASELINE.value: "--update-baselines-new",
    Verdict.INCOMPARABLE.value: '--update-baselines --accept "REASON"',
    Verdict.INCONCLUSIVE.value: "",
    Verdict.IMPROVED.value: "--update-baselines",
}


def short(test: str) -> str:
    """A test's id without its file."""
    return test.partition("::")[2] or test


def cut(text: str, width: int) -> str:
    """At most so wide."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _pytest(tests: Sequence[Ended], options: Sequence[str], more: str) -> str:
    nodes = [shlex.quote(one.test) for one in tests]
    if len(nodes) > MOST_STEPS:
        nodes = list(dict.fromkeys(shlex.quote(one.test.partition("::")[0]) for one in tests))
    words = ["pytest", *nodes, *(shlex.quote(option) for option in options)]
    return " ".join([*words, more]).rstrip()


def _bounded(steps: list[str]) -> Iterator[str]:
    yield from steps[:MOST_STEPS]
    if len(steps) > MOST_STEPS:
        yield f"… and {len(steps) - MOST_STEPS} more like this"


def _folded(ordered: Sequence[Ended]) -> list[Ended]:
    """What is not good, as far as it fits."""
    return [one for one in ordered if one.verdict not in GOOD][: MOST_LINES - 1]


def _counts(verdicts: Iterable[str]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in Counter(verdicts).items())


def _severity(verdict: str) -> int:
    return Verdict[verdict].severity if verdict in Verdict.__members__ else Verdict.ERROR.severity
