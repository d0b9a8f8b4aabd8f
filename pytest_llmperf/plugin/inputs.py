"""The inputs of a test: everything that its verdict depends on beside hardware and chance, as a digest per kind.

`--llmperf-resume` takes over a verdict only if all of them are equal. They are read when pytest has collected the
tests: later, files and variables may be others than those that the running code came from.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatch
from functools import partial
from hashlib import sha256
from inspect import unwrap
from pathlib import Path

import pytest

from pytest_llmperf.baseline.paths import baseline_path
from pytest_llmperf.baseline.text import decode
from pytest_llmperf.engines.adapters import startable
from pytest_llmperf.engines.process.environment import Installations
from pytest_llmperf.engines.process.installed import installed_version
from pytest_llmperf.errors import LlmperfError
from pytest_llmperf.plugin.identity import params_of, spec_of_marker, test_id
from pytest_llmperf.plugin.kinds import kind_of
from pytest_llmperf.plugin.state import STATE
from pytest_llmperf.plugin.verdicts import uses_llmperf
from pytest_llmperf.results.conditions import EMULATED
from pytest_llmperf.session.sources import Sources, is_of_project, stable
from pytest_llmperf.session.unchecked import contains_comparison
from pytest_llmperf.version import VERSION

INPUTS = pytest.StashKey[dict[str, str]]()
SOURCES: pytest.StashKey[Sources] = pytest.StashKey()
VERSIONS = pytest.StashKey[dict[tuple[str, str], str]]()  # by installation and hardware kind
# Options of these groups say which tests run, how long, and what is printed.
NEUTRAL_GROUPS = frozenset({
    "general", "terminal reporting", "pytest-warnings", "collect", "debugconfig", "logging", "xdist", "timeout",
    "rerunfailures",
})
NEUTRAL = frozenset({
    "llmperf_resume", "llmperf_budget", "llmperf_runs", "llmperf_report", "update_baselines", "update_baselines_new",
    "llmperf_accept", "llmperf_missing_baseline", "llmperf_inconclusive", "llmperf_unchecked", "llmperf_export",
})
# Variables that change how fast an engine is. CUDA_VISIBLE_DEVICES only chooses the GPU.
VARIABLES = ("CUDA_", "NCCL_", "OMP_", "MKL_", "TORCH", "PYTORCH_", "TRITON_", "LD_PRELOAD", "LD_LIBRARY_PATH",
             "LLMPERF_")
NOT_VARIABLES = frozenset({"CUDA_VISIBLE_DEVICES"})


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Read the inputs of all tests before the first one runs."""
    if not session.config.getoption("collectonly"):
        for item in filter(uses_llmperf, session.items):
            inputs_of(item)


def inputs_of(item: pytest.Item) -> dict[str, str]:
    """Kind of input → digest; empty if an input cannot be read, and then no verdict is taken over."""
    if INPUTS not in item.stash:
        item.stash[INPUTS] = {}
        with suppress(Exception):  # the run itself reports what is wrong with its settings
            item.stash[INPUTS] = {
                kind: sha256("\n".join(lines).encode(errors="surrogatepass")).hexdigest()
                for kind, lines in _lines(item).items()
            }
    return item.stash[INPUTS]


def difference(stored: Mapping[str, str], item: pytest.Item) -> str:
    """What forbids to take over a stored result of a test; "" if all inputs are equal."""
    if not stored:
        return "the stored result names no inputs"
    inputs = inputs_of(item)
    kinds = [kind for kind in sorted(stored.keys() | inputs.keys()) if stored.get(kind) != inputs.get(kind)]
    return f"other {', '.join(kinds)}" if kinds else ""


def _lines(item: pytest.Item) -> dict[str, list[str]]:
    config = item.config
    settings = replace(config.stash[STATE].settings, runs_dir="", runs_store="", runs_store_days=0.0)
    if SOURCES not in config.stash:
        config.stash[SOURCES] = Sources(config.rootpath)
    sources, others = config.stash[SOURCES], sorted(set(_files(item)))
    own = item.nodeid.partition("::")[2].partition("::")[0].partition("[")[0]
    return {
        "code": sources.inputs(item.path, own, others, partial(_is_test, config)),
        "parameters": [item.nodeid, str(stable(params_of(item))), str(stable(_spec(item)))],
        "options": sorted(_options(config)),
        "settings": [str(stable(settings))],
        "environment": [f"{name}={value}" for name, value in sorted(os.environ.items())
                        if name.startswith(VARIABLES) and name not in NOT_VARIABLES],
        "versions": [f"pytest-llmperf {VERSION}", *_engine_versions(item, sources.names(item.path, others))],
        "baseline": list(_baseline(item)),
    }


def _spec(item: pytest.Item) -> object:
    with suppress(Exception, pytest.skip.Exception, pytest.fail.Exception):  # the fixture reports it
        return spec_of_marker(item)
    return None


def _files(item: pytest.Item) -> Iterator[Path]:
    """The project's files with hooks and fixtures of a test: conftest files, plugins and modules of fixtures."""
    plugins = (getattr(plugin, "__file__", None) for plugin in item.config.pluginmanager.get_plugins())
    fixtures = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009 - no public name
    codes = (getattr(unwrap(each.func), "__code__", None) for definitions in fixtures for each in definitions)
    files = [*(file for file in plugins if file), *(code.co_filename for code in codes if code is not None)]
    for path in map(Path, files):
        if is_of_project(path) and (path.name != "conftest.py" or path.parent in item.path.parents):
            yield path


def _is_test(config: pytest.Config, name: str) -> bool:
    patterns = [*config.getini("python_functions"), *config.getini("python_classes")]
    return bool(name) and any(name.startswith(pattern) or fnmatch(name, pattern) for pattern in patterns)


def _options(config: pytest.Config) -> Iterator[str]:
    """Options with another value than the default, of this package and of the project's own plugins."""
    parser = config._parser
    for group in (parser._anonymous, *parser._groups):
        for option in () if group.name in NEUTRAL_GROUPS else group.options:
            value = getattr(config.option, option.dest, None)
            if option.dest not in NEUTRAL and value != option.default:
                yield f"{option.dest}={value!r}"


def _engine_versions(item: pytest.Item, names: Collection[str]) -> Iterator[str]:
    """Installed versions of the engines that the code names. The emulator has the version of this package."""
    state, kind = item.config.stash[STATE], kind_of(item)
    if state.emulation is not None or kind is None:
        return
    installations = Installations(state.settings.engines, item.config.rootpath, kind)
    configured = {place.partition("@")[0] for place in state.settings.engines}
    for name in sorted(configured | {*startable()}):
        engine, _, installation = name.partition(":")
        if engine in names and (not installation or installation in names or name in configured):
            versions = item.config.stash.setdefault(VERSIONS, {})
            if (name, kind) not in versions:
                versions[name, kind] = _version_of(installations, name)
            yield versions[name, kind]


def _version_of(installations: Installations, name: str) -> str:
    """The place and version of an installed engine; without a version if the engine is missing, which the test says."""
    try:
        environment = installations.find_environment(name)
    except LlmperfError:
        return name
    return f"{name} {environment.prefix} {installed_version(environment, name.partition(':')[0])}"


def _baseline(item: pytest.Item) -> Iterator[str]:
    """The stored sessions that a test is compared with, without the session that goes on."""
    if not contains_comparison(getattr(item, "obj", None)) or (kind := kind_of(item)) is None:
        return
    state = item.config.stash[STATE]
    own = state.session_id if state.session_known else None
    label = f"{EMULATED}{kind}" if state.hardware.emulated else kind
    path = item.config.rootpath / state.settings.baselines_dir / baseline_path(test_id(item), label)
    if path.is_file():
        for name, measurement in sorted(decode(path.read_bytes(), str(path)).measurements.items()):
            yield f"{name} {[session for session in measurement.sessions if session.id != own]}"
