"""pytest's view of this package. A run without performance tests meets this module and the table of options alone.

The hooks of `active` are registered when a session turns out to be about performance: by an option, the project's
settings, a marker expression, a hook of a `conftest.py`, xdist, or the first test with one of our fixtures or markers.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_llmperf.kinds import GPU_KINDS, kind_names
from pytest_llmperf.plugin.options import any_given, has_settings, pytest_addoption, pytest_load_initial_conftests

if TYPE_CHECKING:
    from pytest_llmperf.engines.control.running_server import RunningServer
    from pytest_llmperf.session.perf import Perf

ACTIVE = "llmperf-active"
BROKEN = pytest.StashKey[list[pytest.CollectReport]]()  # files that broke before the first performance test
MARKERS = (
    "cpu: runs on a machine without a GPU",
    "gpus(n): needs that many GPUs",
    "not_emulated(reason): is skipped with --emulate, because the emulator does not model what the test measures",
    "owner(name): who looks after a performance test; reports of a red test name the owner",
    "quarantine(reason, until): the performance test runs and does not gate until that day (YYYY-MM-DD); afterwards it "
    "is red",
    "engine(*specs, fresh=False, ids=None): engines that the `engine` fixture starts; a spec, or a function of the "
    "case that gives one; fresh=True never shares the server",
)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from pytest_llmperf.plugin import hookspec

    pluginmanager.add_hookspecs(hookspec)


def pytest_configure(config: pytest.Config) -> None:
    for marker in (*(f"{name}: runs on this GPU" for name in GPU_KINDS), *MARKERS):
        config.addinivalue_line("markers", marker)
    for name in ("pytest_llmperf", "pytest-llmperf"):  # `-p no:llmperf` blocks the first name, too
        if config.pluginmanager.is_blocked(name):
            raise pytest.UsageError(
                "-p no:llmperf does not disable pytest-llmperf: the plugin is registered under the name of its module. "
                "Write -p no:pytest_llmperf.plugin"
            )
    if _is_about_performance(config):
        activate(config)


def activate(config: pytest.Config) -> None:
    """Register the hooks of a session with performance tests, once."""
    if not config.pluginmanager.has_plugin(ACTIVE):
        from pytest_llmperf.plugin import active

        config.pluginmanager.register(active, ACTIVE)  # pytest configures it at once
        broken = config.stash.setdefault(BROKEN, [])
        active.hear_broken_files(config, broken)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The error of a broken file travels to the controller. It waits until the session has a performance test."""
    report = yield
    if report.failed:
        from pytest_llmperf.plugin.endings import raised_text
        from pytest_llmperf.plugin.outcomes import names_package

        call = getattr(report, "call", None)
        if call is not None and call.excinfo is not None:
            outcome, text = raised_text(call.excinfo.value)
            report.llmperf = {"undecided": (outcome, f"in collection: {text}")}  # type: ignore[attr-defined]
        if names_package(collector.path):
            activate(collector.config)
        elif not collector.config.pluginmanager.has_plugin(ACTIVE):
            collector.config.stash.setdefault(BROKEN, []).append(report)
    return report


def _is_about_performance(config: pytest.Config) -> bool:
    """What can be known before a test is collected. Under xdist the controller collects nothing."""
    words = re.findall(r"\w+", config.getoption("-m", default="") or "")
    return (
        any_given(config)
        or hasattr(config, "workerinput")
        or bool(config.getoption("numprocesses", default=None))
        or not set(words).isdisjoint(kind_names())
        or any(name.startswith("pytest_llmperf_") and getattr(config.hook, name).get_hookimpls()
               for name in vars(config.hook))
        or has_settings(config.rootpath)
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`@pytest.mark.engine(a, b)` makes one item per spec; a single spec adds nothing to the test's name."""
    if metafunc.definition.get_closest_marker("engine") is not None:
        activate(metafunc.config)
        from pytest_llmperf.plugin.fixtures import generate_tests

        generate_tests(metafunc)


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.config.pluginmanager.has_plugin(ACTIVE):
        return
    if not {"engine", "perf"}.isdisjoint(getattr(item, "fixturenames", ())) or _has_our_marker(item):
        activate(item.config)
        from pytest_llmperf.plugin import active

        active.pytest_itemcollected(item)


def _has_our_marker(item: pytest.Item) -> bool:
    names = {marker.name for marker in item.iter_markers()}
    return bool(names) and not names.isdisjoint({*kind_names(), "gpus", "not_emulated", "engine"})


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> RunningServer:
    """The running server of `@pytest.mark.engine(spec)`, shared by all tests with an equal spec."""
    from pytest_llmperf.plugin.fixtures import server_of

    return server_of(request.node)


@pytest.fixture
def perf(request: pytest.FixtureRequest) -> Iterator[Perf]:
    """Measure, check and claim. What is checked is collected; the worst verdict becomes the test's outcome."""
    from pytest_llmperf.plugin.fixtures import perf_of

    yield from perf_of(request.node)


__all__ = [
    "engine",
    "perf",
    "pytest_addhooks",
    "pytest_addoption",
    "pytest_configure",
    "pytest_generate_tests",
    "pytest_itemcollected",
    "pytest_load_initial_conftests",
    "pytest_make_collect_report",
]
