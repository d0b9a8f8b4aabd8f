"""The table of the options for pytest. A run without performance tests imports this module and no heavy one."""

from __future__ import annotations

import re
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Generator
from copy import copy
from pathlib import Path
from typing import Any, Literal

import pytest

Mode = Literal["all", "new"]
SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
#: Short names of options, each valid unless another plugin has an option of this name.
SHORT = {f"--{name}": f"--llmperf-{name}" for name in ("budget", "reference", "resume")}
#: Names that are refused with the option that replaces them.
REPLACED = {
    "--llmperf-gpu-hour-price": "--llmperf-set gpu_hour_price=PRICE",
    "--llmperf-load-hosts": "--llmperf-set load_hosts=ADDRESS",
    "--llmperf-profile-on-fail": "--llmperf-profile on-fail",
    "--llmperf-resident": "--llmperf-set resident_servers=WAY",
}


def budget_s(text: str) -> float:
    """Seconds of "90s", "15min" or "1h".

    Raises:
        ArgumentTypeError: the text is no time, or the time is 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h)", text.strip())
    if match is None or float(match[1]) == 0:
        raise ArgumentTypeError(f"{text!r} is no time: write --llmperf-budget 15min (s, min or h)")
    return float(match[1]) * SECONDS[match[2]]


def _seed(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ArgumentTypeError(f"{text}: write a whole number, 0 or more")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ArgumentTypeError(f"{text}: seconds, 0 or more")
    return value


def option(name: str, **arguments: Any) -> tuple[str, dict[str, Any]]:  # noqa: ANN401 - those of argparse
    """A row of `OPTIONS`: the name, and the arguments of argparse's `add_argument`."""
    return name, arguments


OPTIONS = (
    option(
        "--llmperf-engine",
        action="append",
        default=[],
        metavar="NAME=PLACE",
        help="where an engine is installed: a folder, an interpreter, a command or image:NAME, e.g. "
        "vllm=.engines/vllm-cpu; vllm:old=… is an installation that a test asks for by name",
    ),
    option(
        "--llmperf-reference",
        action="append",
        default=[],
        metavar="ENGINE=PLACE",
        help="compare with this build of an engine, measured in turn on the same hardware and seeds, instead of with "
        "stored baselines, e.g. vllm=/opt/engines/vllm-0.26 (a folder, an interpreter, a command or image:NAME); under "
        "--emulate vllm=emulator, which has none of the planted faults and flags",
    ),
    option(
        "--llmperf-set",
        action="append",
        default=[],
        metavar="SETTING=VALUE",
        help="a setting for this command alone, e.g. load_hosts=ray://head:10001 or resident_servers=sleep; may be "
        "repeated",
    ),
    option(
        "--llmperf-runs",
        default=None,
        metavar="DIR",
        help="where run folders are written (default: .llmperf/runs)",
    ),
    option(
        "--emulate",
        default=None,
        metavar="KIND",
        help="let the built-in emulator of this hardware (h200, l40s, ... or a kind of the project) stand in for "
        "every engine; results are labelled emulated",
    ),
    option(
        "--emulate-clock",
        choices=("virtual", "real"),
        default="virtual",
        help="virtual time (default), or real time behind HTTP",
    ),
    option(
        "--emulate-fault",
        action="append",
        default=[],
        metavar="FAULT",
        help="plant one, e.g. prefix_cache=off, step_time=+5%%, chunk_budget=/4; may be repeated "
        "(python -m pytest_llmperf.emulator --help lists them)",
    ),
    option(
        "--emulate-noise",
        default=None,
        metavar="SPREAD",
        help="spread of step times, e.g. session=0.3%%,run=0.5%%,step=1%% (the default); age=4%%:120s: steps of a "
        "server are longer in its first seconds; gpu=1%%: between the GPUs of a host; none: exact",
    ),
    option(
        "--emulate-seed",
        type=_seed,
        default=0,
        metavar="N",
        help="seed of that noise (default: 0)",
    ),
    option(
        "--plant-flag",
        action="append",
        default=[],
        metavar="ENGINE:FLAG[=VALUE]",
        help="start every server of that engine with this flag, over what the test says, to see whether the suite "
        "notices, e.g. vllm:enforce-eager (vllm:reference:FLAG: the servers of --reference); may be repeated, is "
        "recorded in the run, and never becomes a baseline",
    ),
    option(
        "--llmperf-extension-limit",
        type=_seconds,
        default=None,
        metavar="SECONDS",
        help="an undecided claim or comparison measures no further runs once it has taken this long; 0: its first "
        "three runs decide, for hardware that is lent for minutes; against fewer than 3 stored sessions only a gross "
        "regression can FAIL then (default: extension_limit_s, 600)",
    ),
    option(
        "--update-baselines",
        action="store_true",
        help="take what this run measures into the baselines, if it is valid",
    ),
    option(
        "--update-baselines-new",
        action="store_true",
        help="create missing baselines; change none that exists",
    ),
    option(
        "--llmperf-accept",
        default=None,
        metavar="REASON",
        help="with --update-baselines: take in what would be refused; the reason is stored",
    ),
    option(
        "--llmperf-missing-baseline",
        choices=("fail", "skip"),
        default=None,
        help="pytest outcome of a missing or incomparable baseline (default: fail if CI is set, else skip)",
    ),
    option(
        "--llmperf-report",
        default=None,
        metavar="DIR",
        help="where report.html is written (default: the run folder, .llmperf/runs/<time>/)",
    ),
    option(
        "--llmperf-export",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="write the results to PATH in this format at the end: pytest-benchmark, vllm, parquet, csv, or a sink of "
        "another package; may be repeated",
    ),
    option(
        "--llmperf-unchecked",
        choices=("report", "fail"),
        default="report",
        help="outcome of a test that measures but checks nothing (default: report, a line in the summary)",
    ),
    option(
        "--llmperf-budget",
        type=budget_s,
        default=None,
        metavar="TIME",
        help="begin no performance test that would not end within this time, judged by earlier runs; the tests that "
        "decide most per minute come first, e.g. 15min (s, min or h)",
    ),
    option(
        "--llmperf-resume",
        default=None,
        metavar="RUN",
        help="go on in this run folder: the tests that it has decided, with equal code, options and settings, do not "
        "run again and are reported with their verdicts; all others run, and a search keeps the rates that it has "
        "judged; for hardware that is lent for minutes (a path, an id, a part of the id, or newest)",
    ),
    option(
        "--llmperf-profile",
        choices=("always", "on-fail"),
        default=None,
        help="after the verdict of each test, or of each FAIL, repeat a run of each measurement with PyTorch's "
        "profiler. The run folder keeps the trace and its breakdown (attention, matrix products, communication, idle)",
    ),
    option(
        "--llmperf-inconclusive",
        choices=("skip", "fail"),
        default="skip",
        help="pytest outcome of an INCONCLUSIVE verdict (default: skip, exit code 11)",
    ),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("llmperf", "LLM inference server performance")
    for name, arguments in OPTIONS:
        group.addoption(name, **arguments)


def any_given(config: pytest.Config) -> bool:
    """Whether the command line has one of the options."""
    return any(config.getoption(name) not in (arguments.get("default"), False) for name, arguments in OPTIONS)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, None, None]:
    """Before pytest captures output, refuse a machine without a temporary folder, and replace short option names."""
    if getattr(early_config.known_args_namespace, "capture", "no") == "fd":  # absent with -p no:capture
        try:
            tempfile.gettempdir()
        except FileNotFoundError as error:
            from pytest_llmperf.process.places import no_temporary_folder

            raise pytest.UsageError(no_temporary_folder(error)) from error
    _replace_short_names(early_config, parser, args)
    return (yield)


def _replace_short_names(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Name the new option in the error about an option that was renamed."""
    words = {argument.partition("=")[0] for argument in args}
    for given in words & REPLACED.keys():
        parser.extra_info[given] = f"use {REPLACED[given]} (pytest-llmperf)"
    if words.isdisjoint(SHORT):
        return
    others = {name for group in (parser._anonymous, *parser._groups) for each in group.options for name in each.names()}
    for position, argument in enumerate(args):
        name, equals, value = argument.partition("=")
        if name in SHORT and name not in others:
            args[position] = f"{SHORT[name]}{equals}{value}"
    early_config.known_args_namespace = parser.parse_known_args(args, namespace=copy(early_config.option))


def mode_of(config: pytest.Config) -> Mode | None:
    """Which baselines this run changes; None: none."""
    if config.getoption("--update-baselines"):
        return "all"
    return "new" if config.getoption("--update-baselines-new") else None


def has_settings(root: Path) -> bool:
    """Whether the project at `root` has settings of this plugin."""
    project = root / "pyproject.toml"
    return (root / "llmperf.toml").is_file() or (project.is_file() and b"tool.llmperf" in project.read_bytes())
