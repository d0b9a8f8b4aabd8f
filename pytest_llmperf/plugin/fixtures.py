"""What the fixtures `engine` and `perf` give, and the parametrisation by `@pytest.mark.engine`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from pytest_llmperf.engines.control.running_server import RunningServer
from pytest_llmperf.errors import InfrastructureError, did_you_mean
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.plugin.endings import conclude_late
from pytest_llmperf.plugin.identity import (
    check_written_slos,
    params_of,
    spec_of,
    spec_of_marker,
    test_id,
)
from pytest_llmperf.plugin.inputs import inputs_of
from pytest_llmperf.plugin.kinds import kind_of
from pytest_llmperf.plugin.profiling import profile
from pytest_llmperf.plugin.state import STATE
from pytest_llmperf.plugin.verdicts import ENDING, EXECUTION, leave_without_traceback
from pytest_llmperf.results.writer import write_test
from pytest_llmperf.session.executions import begin_execution
from pytest_llmperf.session.perf import Perf
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.session.unchecked import contains_comparison

MARKER_KEYWORDS = frozenset({"fresh", "ids"})


def generate_tests(metafunc: pytest.Metafunc) -> None:
    """`@pytest.mark.engine(a, b)` makes one item per spec; a single spec adds nothing to the test's name."""
    marker = metafunc.definition.get_closest_marker("engine")
    if marker is None or "engine" not in metafunc.fixturenames:
        return
    _check_marker(marker, metafunc.definition.nodeid)
    if len(marker.args) > 1:
        ids = marker.kwargs.get("ids") or [f"engine{number}" for number in range(len(marker.args))]
        metafunc.parametrize("engine", marker.args, indirect=True, ids=ids)


def server_of(item: pytest.Item) -> RunningServer:
    """The value of the fixture `engine`."""
    spec = spec_of(item)
    marker = item.get_closest_marker("engine")
    if marker is not None:  # one that a parameter brings was not there yet when tests were made of the function
        _check_marker(marker, item.nodeid)
        if len(marker.args) > 1 and "engine" not in params_of(item):
            pytest.fail(f"{item.nodeid}: @pytest.mark.engine of a parameter takes one engine: write a pytest.param for "
                        "each.", pytrace=False)
    if spec is None:
        why = (f"@pytest.mark.engine gives {spec_of_marker(item)!r}, which is no engine: write" if marker
               else "the test uses the fixture `engine` and does not say which: add")
        pytest.fail(f'{item.nodeid}: {why} @pytest.mark.engine(vllm("MODEL", …)) with a spec, or a function of the '
                    "case that gives one.", pytrace=False)
    fresh = bool(marker and marker.kwargs.get("fresh"))
    with leave_without_traceback(item):
        check_written_slos(getattr(item, "obj", None))
        session = item.config.stash[STATE].session
        spec = spec.on(kind_of(item))
        beside = session.beside(spec, compares=contains_comparison(getattr(item, "obj", None)))
        with _record_startup_failure(item, session):
            return RunningServer(session.pool.acquire(spec, fresh=fresh, beside=beside))


def perf_of(item: pytest.Item) -> Iterator[Perf]:
    """The value of the fixture `perf`, and what follows the test."""
    with leave_without_traceback(item):
        check_written_slos(getattr(item, "obj", None))
        execution = begin_execution(item.config.stash[STATE].session, test_id(item), kind_of(item) or "cpu",
                                    compares=contains_comparison(getattr(item, "obj", None)),
                                    inputs=inputs_of(item))
    item.stash[EXECUTION] = execution
    yield Perf(execution)
    with leave_without_traceback(item):
        try:
            try:
                conclude_late(item)
            finally:
                profile(item.config, execution)
        finally:
            execution.close()


@contextmanager
def _record_startup_failure(item: pytest.Item, session: PerfSession) -> Iterator[None]:
    """A server that did not start has its place in the run folder: no `perf` of this test will write one."""
    try:
        yield
    except InfrastructureError as error:
        this = item.stash.get(EXECUTION, None)  # where the test asks for `perf` first
        if all(other is this for other in session.executions(test_id(item))):  # what an earlier one measured stays
            session.folder.begin()
            path = write_test(session.run_dir, test_id(item), [], [], complete=False, error=str(error),
                              worker=session.worker)
            item.stash[ENDING] = replace(item.stash[ENDING], run_file=str(path))
            if this is not None:
                this.run_file = path
        raise


def _check_marker(marker: pytest.Mark, nodeid: str) -> None:
    if wrong := _marker_problem(marker):
        pytest.fail(f"{nodeid}: {wrong}", pytrace=False)


def _marker_problem(marker: pytest.Mark) -> str | None:
    if unknown := sorted(set(marker.kwargs) - MARKER_KEYWORDS):
        meant = (did_you_mean(unknown[0], MARKER_KEYWORDS, "Did you mean {}?")
                 or f"Engine flags go into the spec: vllm(MODEL, {unknown[0]}=…).")
        return (f"@pytest.mark.engine has no keyword {', '.join(unknown)}; it takes specs and "
                f"{', '.join(sorted(MARKER_KEYWORDS))}. {meant}")
    if not marker.args:
        return "@pytest.mark.engine() names no engine. Write @pytest.mark.engine(vllm(MODEL))."
    if strange := [
        argument for argument in marker.args if not isinstance(argument, EngineSpec) and not callable(argument)
    ]:
        return (f"@pytest.mark.engine({strange[0]!r}): an engine is a spec, vllm(MODEL), or a function of the "
                "case that gives one.")
    return None
