"""Refuses invalid options and settings before collection, with one sentence and exit code 4."""

from __future__ import annotations

import os
import shlex

import pytest

from pytest_llmperf.engines.process.environment import Installations, check_emulation
from pytest_llmperf.engines.process.installed import check_emulated_reference, check_reference
from pytest_llmperf.errors import EnvironmentMissing, LlmperfError, UsageError, did_you_mean
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.load.ray_hosts import check_load_hosts
from pytest_llmperf.plugin.baselines import refuse_contradictory_options
from pytest_llmperf.plugin.options import has_settings
from pytest_llmperf.plugin.profiling import refuse_emulated_traces
from pytest_llmperf.plugin.state import STATE, State, references_of
from pytest_llmperf.report.export import SINKS

FOLDERS = ("--llmperf-runs", "--llmperf-report")


def refuse(config: pytest.Config) -> None:
    """Ask everything that needs no test.

    Raises:
        UsageError: an option or a setting is invalid, contradicts another one, or is not for this machine.
    """
    _refuse_unknown_emulation(config)
    _refuse_options_without_emulation(config)
    _refuse_moving_the_root(config)
    refuse_contradictory_options(config)
    _refuse_unknown_sinks(config)
    refuse_emulated_traces(config)
    _refuse_unreadable_values(config)


def _refuse_unknown_emulation(config: pytest.Config) -> None:
    kind = config.getoption("--emulate")
    if kind is not None and kind not in GPU_KINDS:
        meant = did_you_mean(kind, GPU_KINDS, " Did you mean {}?")
        raise pytest.UsageError(f"--emulate {kind}: there is no such GPU kind.{meant} Known: {', '.join(GPU_KINDS)}. "
                                f"[tool.llmperf.kinds.{kind}] in pyproject.toml would define it.")


def _refuse_options_without_emulation(config: pytest.Config) -> None:
    """A fault or seed without --emulate would be dropped in silence."""
    defaults: dict[str, object] = {
        "--emulate-clock": "virtual", "--emulate-fault": [], "--emulate-noise": None, "--emulate-seed": 0,
    }
    given_options = [name for name, default in defaults.items() if config.getoption(name) != default]
    if given_options and config.getoption("--emulate") is None:
        kinds = ", ".join(GPU_KINDS)
        raise pytest.UsageError(
            f"{given_options[0]} says how to emulate, and --emulate KIND is missing: one of {kinds}."
        )


def _refuse_unknown_sinks(config: pytest.Config) -> None:
    """Refuse an export that nothing can write, before hours of measuring."""
    for option in config.getoption("--llmperf-export"):
        name, _, place = option.partition("=")
        try:
            problem = "" if SINKS.get(name) is not None else SINKS.unknown(name)
        except LlmperfError as error:
            problem = str(error)
        if problem or not place:
            raise pytest.UsageError(f"--llmperf-export={option}: {problem or 'write it as NAME=PATH.'}")


def _refuse_moving_the_root(config: pytest.Config) -> None:
    """Refuse a folder option that would move pytest's rootdir. pytest determines the rootdir before it knows the
    options of plugins, and takes the value of such an option for a test path if the path exists."""
    here = config.invocation_params.dir
    typed = [*map(str, config.invocation_params.args), *shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))]
    for name in FOLDERS:
        folder = config.getoption(name)
        if name in typed and not (here / folder).resolve().is_relative_to(here.resolve()):
            raise pytest.UsageError(
                f"{name} {folder}: once this folder exists, pytest would take it for a folder of tests and move its "
                f"rootdir, where baselines are, above {here}. Write it as one word: {name}={folder}"
            )


def _refuse_unreadable_values(config: pytest.Config) -> None:
    """Read the settings and the option values early, so errors end the session at once. A session without settings and
    without these options skips the imports."""
    state, option = config.stash[STATE], config.getoption
    emulated = bool(option("--emulate-fault") or option("--emulate-noise"))
    named = ("--plant-flag", "--llmperf-engine", "--llmperf-reference", "--llmperf-set")
    if not (emulated or any(map(option, named)) or has_settings(config.rootpath)):
        return
    try:
        state.settings  # noqa: B018
        state.planted  # noqa: B018
        if emulated and state.emulation is not None:
            check_emulation(state.emulation)
        if option("--llmperf-reference"):
            _refuse_references(state)
        if state.settings.load_hosts and (state.emulation is None or state.emulation.clock == "real"):
            check_load_hosts(state.settings.load_hosts)
    except (UsageError, EnvironmentMissing) as error:
        raise pytest.UsageError(str(error)) from error


def _refuse_references(state: State) -> None:
    """Refuse a reference build that is missing, belongs to another engine, or equals the candidate."""
    for engine in references_of(state.config):
        if state.emulation is not None:
            check_emulated_reference(engine, state.settings.engines)
        else:
            installations = Installations(state.settings.engines, state.config.rootpath, state.hardware.kind)
            check_reference(engine, installations, may_be_equal=bool(state.planted))
