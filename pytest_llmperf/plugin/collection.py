"""The tests of a suite for those who run them otherwise than pytest does: calibration."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_llmperf.plugin.identity import compares_with_baseline, params_of, spec_of
from pytest_llmperf.plugin.kinds import kind_of, skip_what_cannot_run_here

if TYPE_CHECKING:
    from pytest_llmperf.calibration.suite_test import SuiteTest
    from pytest_llmperf.session.executions import Execution

OWN = {"perf", "engine", "request"}


def collect(paths: Sequence[str], kind: str) -> Collected:
    """The tests below `paths` that would run on an emulated `kind`, in pytest's order.

    Raises:
        UsageError: pytest cannot collect them, or none can be run.
    """
    from pytest_llmperf.errors import UsageError

    collected = Collected()
    output = io.StringIO()
    # We are imported already, so that pytest cannot rewrite our assertions, and would say so.
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "--assert=plain", "--emulate", kind]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = pytest.main([*options, *paths], [collected])
    if code != pytest.ExitCode.OK:
        raise UsageError(f"pytest cannot collect {' '.join(paths)} (exit code {int(code)}): {output.getvalue()[-500:]}")
    if not collected.tests:
        left_out = "".join(f" {name} has fixtures of its own." for name in collected.left_out[:1])
        raise UsageError(f"Nothing below {' '.join(paths)} can be calibrated on an emulated {kind}.{left_out}")
    return collected


class Collected:
    """What pytest collects.

    Attributes:
        tests: that can be run without pytest.
        left_out: ids of those that have fixtures of their own, which only pytest can set up.
    """

    def __init__(self) -> None:
        self.tests: list[SuiteTest] = []
        self.left_out: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if not isinstance(item, pytest.Function) or "perf" not in item.fixturenames:
                continue
            try:
                skip_what_cannot_run_here(item)
            except pytest.skip.Exception:
                continue
            except pytest.fail.Exception as error:
                raise pytest.UsageError(str(error)) from error
            self._take(item)

    def _take(self, item: pytest.Function) -> None:
        from pytest_llmperf.calibration.suite_test import SuiteTest

        params = dict(params_of(item))
        if set(item.fixturenames) - OWN - set(params):
            self.left_out.append(item.nodeid)
            return
        spec, kind, function = spec_of(item), kind_of(item), item.obj

        def run(execution: Execution) -> None:
            from pytest_llmperf.session.perf import Perf

            arguments = {name: value for name, value in params.items() if name != "engine"}
            if spec is not None:
                arguments["engine"] = execution.session.pool.acquire(spec.on(kind))
            with contextlib.suppress(pytest.skip.Exception):
                function(perf=Perf(execution), **arguments)

        self.tests.append(SuiteTest(item.nodeid, run, compares_with_baseline(function)))
