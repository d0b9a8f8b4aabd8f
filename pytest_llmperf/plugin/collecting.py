"""The tests of a suite for those who run them otherwise than pytest does: calibration."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_llmperf.plugin.fixtures import spec_of
from pytest_llmperf.plugin.kinds import kind_of, pytest_runtest_setup

if TYPE_CHECKING:
    from pytest_llmperf.calibration.suite_test import SuiteTest
    from pytest_llmperf.session.perf import Perf

OWN = {"perf", "engine", "request"}


def collect(paths: Sequence[str], kind: str) -> list[SuiteTest]:
    """The tests below `paths` that would run on an emulated `kind`, in pytest's order.

    Raises:
        UsageError: pytest cannot collect them, none runs, or one has a fixture of its own.
    """
    from pytest_llmperf.errors import UsageError

    collector = _Collector()
    told = io.StringIO()
    # We are imported already, so that pytest cannot rewrite our assertions, and would say so.
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "--assert=plain", "--emulate", kind]
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        code = pytest.main([*options, *paths], [collector])
    if code != pytest.ExitCode.OK:
        raise UsageError(f"pytest cannot collect {' '.join(paths)} (exit code {int(code)}): {told.getvalue()[-500:]}")
    if collector.refused:
        raise UsageError(f"Calibration runs tests with the fixtures perf and engine only. {collector.refused[0]}")
    if not collector.found:
        raise UsageError(f"Nothing below {' '.join(paths)} runs on an emulated {kind}.")
    return collector.found


class _Collector:
    """Keeps what pytest collects."""

    def __init__(self) -> None:
        self.found: list[SuiteTest] = []
        self.refused: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if not isinstance(item, pytest.Function) or "perf" not in item.fixturenames:
                continue
            try:
                pytest_runtest_setup(item)
            except pytest.skip.Exception:
                continue
            self._take(item)

    def _take(self, item: pytest.Function) -> None:
        from pytest_llmperf.calibration.suite_test import SuiteTest

        callspec = getattr(item, "callspec", None)
        params: dict[str, object] = {} if callspec is None else dict(callspec.params)
        foreign = sorted(set(item.fixturenames) - OWN - set(params))
        if foreign:
            self.refused.append(f"{item.nodeid} uses {', '.join(foreign)}.")
            return
        spec, kind, function = spec_of(item), kind_of(item), item.obj

        def run(perf: Perf) -> None:
            given = {name: value for name, value in params.items() if name != "engine"}
            if spec is not None:
                given["engine"] = perf.session.pool.acquire(spec, kind)
            with contextlib.suppress(pytest.skip.Exception):
                function(perf=perf, **given)

        self.found.append(SuiteTest(item.nodeid, run))
