"""The order of tests. Tests with the same engine share one server start; with `--llmperf-budget 15min` the tests that
decide most per minute come first, and no test begins that would not end in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import pytest

from pytest_llmperf.clock import Clock, SystemClock
from pytest_llmperf.plugin.excuses import RUNS_HERE
from pytest_llmperf.plugin.identity import spec_unless_it_raises, test_id
from pytest_llmperf.plugin.kinds import kind_of
from pytest_llmperf.plugin.resume import DECIDED
from pytest_llmperf.plugin.session_record import known_durations_s
from pytest_llmperf.plugin.state import STATE
from pytest_llmperf.plugin.verdicts import ending_of, uses_llmperf

NAME = "llmperf-budget"
NOT_BEGUN = "llmperf.not_begun"
NEXT_S = 900.0
SHOWN = 5


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move every item with a spec right behind the first item with the same spec; nothing else moves.

    A test that requests a fresh server start comes last in its group, so the rest of the group shares one server start.
    """
    items[:] = [item for group in groups_of_one_server(items) for item in sorted(group, key=_wants_fresh)]


def groups_of_one_server(items: Sequence[pytest.Item]) -> list[list[pytest.Item]]:
    """The items, grouped by the spec of their engine marker; an item without a spec is a group of its own."""
    groups: dict[object, list[pytest.Item]] = {}
    for position, item in enumerate(items):
        spec = spec_unless_it_raises(item)
        groups.setdefault(position if spec is None else spec, []).append(item)
    return list(groups.values())


def _wants_fresh(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("engine")
    return bool(marker and marker.kwargs.get("fresh"))


class Budget:
    """One per process: orders and skips. The controller reports at the end.

    Args:
        seconds: time for the tests of this process, from its first test on.
        durations_s: test → seconds, of earlier runs.
        clock: measures the time that is used.
    """

    def __init__(self, seconds: float, durations_s: Mapping[str, float], clock: Clock | None = None) -> None:
        self._seconds, self._durations_s = seconds, durations_s
        self._clock = clock or SystemClock()
        self._began_ns: int | None = None
        self._verdicts: dict[str, str] = {}  # test that was begun → its verdict
        self._not_begun: dict[str, str] = {}  # test → seconds that it needs, "" where unknown

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Groups that share a server stay together; the group with the shortest mean duration comes first.

        Raises:
            pytest.UsageError: no test fits into the budget.
        """
        groups = sorted(groups_of_one_server(items), key=self._mean_s)
        items[:] = [item for group in groups for item in group]
        tests = [test_id(item) for item in items if uses_llmperf(item) and kind_of(item) is not None]
        durations_s = {test: self._durations_s[test] for test in tests if test in self._durations_s}
        if (
            durations_s
            and len(durations_s) == len(set(tests))
            and (shortest := min(durations_s.values())) > self._seconds
        ):
            name = min(durations_s, key=lambda test: durations_s[test])
            raise pytest.UsageError(
                f"--llmperf-budget {duration(self._seconds)}: the shortest test, {name}, took {duration(shortest)} in "
                f"an earlier run. Write --llmperf-budget {duration(shortest)} or more."
            )

    def needed_s(self, item: pytest.Item) -> float:
        """Seconds of the item's newest run; the median of all tests for a new item, 0 without earlier runs."""
        unknown_s = median(self._durations_s.values()) if self._durations_s else 0.0
        return self._durations_s.get(test_id(item), unknown_s)

    def _mean_s(self, group: Sequence[pytest.Item]) -> float:
        measuring = [self.needed_s(item) for item in group if uses_llmperf(item)]
        return sum(measuring) / len(measuring) if measuring else 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip an item that needs more time than is left."""
        if not uses_llmperf(item):
            return
        now_ns = self._clock.now_ns()
        self._began_ns = now_ns if self._began_ns is None else self._began_ns
        left_s = self._seconds - (now_ns - self._began_ns) / 1e9
        needed_s = self.needed_s(item)
        if left_s <= 0 or needed_s > left_s:
            is_timed = test_id(item) in self._durations_s
            item.stash[RUNS_HERE] = False
            item.user_properties.append((NOT_BEGUN, f"{needed_s:.0f}" if is_timed else ""))
            needs = f"about {duration(needed_s)} needed, " if is_timed else ""
            left = f"{duration(max(0.0, left_s))} of --llmperf-budget {duration(self._seconds)} left"
            pytest.skip(f"not begun: {needs}{left}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        needs = [str(value) for name, value in report.user_properties if name == NOT_BEGUN]
        if needs:
            self._not_begun[report.nodeid] = needs[-1]
        elif (verdict := ending_of(report).verdict) is not None:
            self._verdicts[report.nodeid] = verdict

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.summary():
            terminalreporter.write_line(line)

    def summary(self) -> Iterator[str]:
        """What was decided, what stayed open or was not begun, and what one more quarter of an hour would buy."""
        count = len(self._not_begun)
        if not count and not self._verdicts:
            return
        decided = Counter(verdict for verdict in self._verdicts.values() if verdict in DECIDED)
        undecided = Counter(verdict for verdict in self._verdicts.values() if verdict not in DECIDED)
        parts = [_counted(decided, "decided"), *([_counted(undecided, "open")] if undecided else []),
                 f"{count} not begun"]
        yield f"budget {duration(self._seconds)}: {', '.join(parts)}"
        needed_s = {test: float(needs) for test, needs in self._not_begun.items() if needs}
        left_s, more = NEXT_S, []
        for test, needed in sorted(needed_s.items(), key=lambda item: item[1]):
            if needed <= left_s:
                left_s -= needed
                more.append(f"{test.partition('::')[2]} ({duration(needed)})")
        rest = f" and {len(more) - SHOWN} more" if len(more) > SHOWN else ""
        if more:
            yield f"  {duration(NEXT_S)} more would be enough for {', '.join(more[:SHOWN])}{rest}"
        if unknown := count - len(needed_s):
            yield f"  no earlier run says how long {unknown} of them take"


def _counted(verdicts: Counter[str], state: str) -> str:
    """"3 decided (1 FAIL, 2 PASS)"."""
    each = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    return f"{verdicts.total()} {state} ({each})" if verdicts else f"0 {state}"


def duration(seconds: float) -> str:
    """"45s" below two minutes, else "15min": as `--llmperf-budget` takes it, rounded up."""
    return f"{-(-seconds // 1):.0f}s" if seconds < 120 else f"{-(-seconds // 60):.0f}min"


def register(config: pytest.Config) -> None:
    """Register the budget of a session that has one."""
    seconds = config.getoption("--llmperf-budget")
    if seconds is not None:
        state = config.stash[STATE]
        durations_s = known_durations_s(config.rootpath / state.settings.runs_dir,
                                        emulated=state.emulation is not None)
        config.pluginmanager.register(Budget(seconds, durations_s), NAME)
