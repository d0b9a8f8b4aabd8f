"""The hooks of a session with performance tests. Each hook lives in the module of its subject."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from pytest_llmperf.doors import Door
from pytest_llmperf.engines.adapters import ENGINES
from pytest_llmperf.engines.connectors.adapter import CONNECTORS
from pytest_llmperf.engines.process.environment import Installations
from pytest_llmperf.engines.process.installed import installed_version
from pytest_llmperf.engines.routers.adapter import ROUTERS
from pytest_llmperf.errors import LlmperfError
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.metrics.registry import METRICS, all_metrics
from pytest_llmperf.plugin.baselines import BaselineUpdater
from pytest_llmperf.plugin.budget import pytest_collection_modifyitems
from pytest_llmperf.plugin.budget import register as register_budget
from pytest_llmperf.plugin.endings import pytest_runtest_call, pytest_runtest_makereport, pytest_runtest_teardown
from pytest_llmperf.plugin.excuses import EXCUSES, Excuses
from pytest_llmperf.plugin.inputs import pytest_runtestloop
from pytest_llmperf.plugin.kinds import pytest_collection_finish, pytest_itemcollected, pytest_runtest_setup
from pytest_llmperf.plugin.options import has_settings, mode_of
from pytest_llmperf.plugin.outcomes import Outcomes
from pytest_llmperf.plugin.profiling import header as profile_header
from pytest_llmperf.plugin.progress import WorkerProgress
from pytest_llmperf.plugin.refusals import refuse
from pytest_llmperf.plugin.reports import ReportWatcher
from pytest_llmperf.plugin.resume import register as register_resume
from pytest_llmperf.plugin.session_record import SessionRecord
from pytest_llmperf.plugin.shutdown import PytestProcess
from pytest_llmperf.plugin.state import STATE, State
from pytest_llmperf.plugin.summary import EndSummary, NothingMeasured
from pytest_llmperf.plugin.verdicts import pytest_report_teststatus, pytest_sessionfinish
from pytest_llmperf.process.kernel import interrupt_on_sigterm
from pytest_llmperf.releases.stored import untested, versions
from pytest_llmperf.report.export import SINKS
from pytest_llmperf.results.emulated_ground import kind_distance
from pytest_llmperf.workload.expression import WORKLOADS


def pytest_configure(config: pytest.Config) -> None:
    """Called when the session turns out to be about performance: as pytest configures, or while it collects."""
    config.stash[STATE] = State(config)
    config.stash[EXCUSES] = Excuses(config)
    know_additions(config)
    if not hasattr(config, "workerinput"):
        refuse(config)
        config.pluginmanager.register(ReportWatcher(config), "llmperf-reports")
        outcomes = Outcomes(config)
        config.pluginmanager.register(outcomes, "llmperf-outcomes")
        config.pluginmanager.register(SessionRecord(config), "llmperf-record")
        if (mode := mode_of(config)) is not None:
            config.pluginmanager.register(BaselineUpdater(config, mode), "llmperf-baselines")
        config.pluginmanager.register(WorkerProgress(config), "llmperf-workers")
        config.pluginmanager.register(EndSummary(config, outcomes), "llmperf-summary")
        config.pluginmanager.register(NothingMeasured(config), "llmperf-nothing")
    register_resume(config)
    register_budget(config)
    config.pluginmanager.register(PytestProcess(config), "llmperf-process")
    interrupt_on_sigterm()


def pytest_unconfigure(config: pytest.Config) -> None:
    state = config.stash.get(STATE, None)
    if state is not None:
        try:
            state.close()  # where no session was finished
        finally:
            state.end_watchdog()


def pytest_report_header(config: pytest.Config) -> list[str]:
    state = config.stash[STATE]
    planted = f"; planted: {' '.join(map(str, state.planted))}" if state.planted else ""
    if state.emulation is not None:
        ground = kind_distance(state.emulation.kind)
        place = f"llmperf: {state.emulation}: nothing here was measured on hardware; {ground}{planted}"
    else:
        place = f"llmperf: {state.hardware}{planted}" if state.hardware_known or planted else ""
    notes = [] if state.emulation is not None else _version_notes(config)
    return [line for line in (place, profile_header(config), *notes) if line]


def _version_notes(config: pytest.Config) -> Iterator[str]:
    """A line for each configured engine whose version is none of the known versions. Containers are not asked."""
    for name, place in config.stash[STATE].settings.engines.items():
        installed_as, _, kind = name.partition("@")
        if not versions(engine := installed_as.partition(":")[0]) or place.startswith("image:"):
            continue
        with suppress(LlmperfError):  # the test that needs the engine says what is wrong
            installations = Installations({installed_as: place}, config.rootpath, kind or "cpu")
            if note := untested(engine, installed_version(installations.find_environment(installed_as), engine)):
                yield f"llmperf: note: {note}"


HEARING = ("llmperf-reports", "llmperf-outcomes", "llmperf-baselines")


def hear_broken_files(config: pytest.Config, reports: Iterable[pytest.CollectReport]) -> None:
    """Tell the parts of the session about files that broke before the first performance test was collected."""
    for name in HEARING:
        if (part := config.pluginmanager.get_plugin(name)) is not None:
            for report in reports:
                part.pytest_collectreport(report)


CONFTEST = "conftest.py"
ROWS = "[tool.llmperf.kinds]"


def know_additions(config: pytest.Config) -> None:
    """Register hardware kinds of the settings, and what the hooks return.

    Raises:
        pytest.UsageError: a row or an object is wrong. The message says which one.
    """
    known, marked = ExitStack(), tuple(GPU_KINDS)  # the kinds of packages have their marker lines
    config.add_cleanup(known.close)
    try:
        if has_settings(config.rootpath) and (kinds := config.stash[STATE].settings.kinds):
            known.enter_context(GPU_KINDS.added(kinds.values(), ROWS))
        for name in ("kinds", "engines", "routers", "connectors", "metrics", "workloads", "sinks"):
            if getattr(config.hook, f"pytest_llmperf_{name}").get_hookimpls():
                known.enter_context(_door(name).added(_returned(config, f"pytest_llmperf_{name}"), CONFTEST))
                if name == "metrics":
                    all_metrics()  # refuses the name of a shipped metric
    except LlmperfError as error:
        raise pytest.UsageError(str(error)) from error
    for kind in tuple(GPU_KINDS)[len(marked):]:
        config.addinivalue_line("markers", f"{kind}: runs on this GPU")


def _returned(config: pytest.Config, hook: str) -> Iterator[object]:
    """The objects that the implementations of a hook return, those of the first conftest.py first.

    Raises:
        pytest.UsageError: the hook fails, or returns no list.
    """
    try:
        returned = getattr(config.hook, hook)(config=config)
    except Exception as error:
        raise pytest.UsageError(f"{CONFTEST}: the hook {hook} fails: {type(error).__name__}: {error}") from error
    for values in reversed(returned):
        if not isinstance(values, list | tuple):
            raise pytest.UsageError(f"{CONFTEST}: the hook {hook} returns {type(values).__name__}. Let it return a "
                                    "list.")
        yield from values


def _door(name: str) -> Door[Any]:
    doors: dict[str, Door[Any]] = {
        "kinds": GPU_KINDS, "engines": ENGINES, "routers": ROUTERS, "connectors": CONNECTORS, "metrics": METRICS,
        "workloads": WORKLOADS, "sinks": SINKS,
    }
    return doors[name]


__all__ = [
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_itemcollected",
    "pytest_report_header",
    "pytest_report_teststatus",
    "pytest_runtest_call",
    "pytest_runtest_makereport",
    "pytest_runtest_setup",
    "pytest_runtest_teardown",
    "pytest_runtestloop",
    "pytest_sessionfinish",
    "pytest_unconfigure",
]
