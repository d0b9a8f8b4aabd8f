"""Fit the emulator to measured runs of one host and engine version.

The coefficients are written to emulator-NAME.json in the folder of baselines, and --emulate NAME takes them from there.
Each half of the runs predicts the other half. A fit that predicts worse than the shipped coefficients is refused.

    llmperf fit .llmperf/runs/* --kind h100
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from pytest_llmperf.calibration.host_fit import Means, Point, fit_host, point_of
from pytest_llmperf.cli.output import say
from pytest_llmperf.config.emulation import GPUS, coefficients_file
from pytest_llmperf.config.root import project_root
from pytest_llmperf.config.settings import read_settings
from pytest_llmperf.emulator.flags.launch import machine
from pytest_llmperf.emulator.flags.parser import StartError
from pytest_llmperf.emulator.flags.sglang import sglang_launch
from pytest_llmperf.emulator.flags.vllm import vllm_launch
from pytest_llmperf.emulator.quantities import UsageError as CannotEmulate
from pytest_llmperf.engines.spec import command_line
from pytest_llmperf.errors import SpecError, UsageError
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.process.scratch import write_whole
from pytest_llmperf.results.conditions import VERSION, stored_flags
from pytest_llmperf.results.measurement import Measurement
from pytest_llmperf.results.reader import read_run
from pytest_llmperf.session.provenance import read_provenance
from pytest_llmperf.workload.expression import read_workload

LAUNCHES = {"vllm": (vllm_launch, "serve"), "sglang": (sglang_launch, "--model-path")}
LEAST = 8  # measurements: four predict four
MOST_HIT_RATE = 0.01
ORIGIN = ("hosts", "kinds of hardware", "engines", "engine versions")


ARGUMENTS = {
    "runs": {"nargs": "+", "metavar": "RUN", "help": "run folders of one host and one engine version"},
    "--kind": {"required": True, "metavar": "NAME", "help": "hardware kind of the runs"},
}


def run(arguments: argparse.Namespace) -> int:
    """Fit, and say how well runs outside the fit are predicted.

    Raises:
        UsageError: the runs cannot be fitted together, or the fit is refused. Nothing is written.
    """
    try:
        return _fit(arguments)
    except (StartError, CannotEmulate) as error:
        raise UsageError(f"the emulator cannot replay these runs: {error}. Leave out run folders with such a server."
                         ) from error


def _fit(arguments: argparse.Namespace) -> int:
    if arguments.kind not in GPU_KINDS:
        raise UsageError(f"--kind {arguments.kind}: there is no such GPU kind. Write one of "
                         f"{', '.join(GPU_KINDS)}.")
    origins: set[tuple[str, ...]] = set()
    left_out: Counter[str] = Counter()
    points = [point for folder in arguments.runs for point in _points(Path(folder), arguments.kind, origins, left_out)]
    _refuse_several(origins)
    left = "".join(f"; {count} left out: {reason}" for reason, count in left_out.items())
    if len(points) < LEAST:
        raise UsageError(f"{len(points)} measurements can be fitted, and at least {LEAST} are needed{left}. Name more "
                         "run folders with different loads.")
    ((_, _, engine, version),) = origins
    fit = fit_host(points)
    quality = (f"mean TPOT of {len(points)} measurements outside the fit: {fit.before:.1%} off with the shipped "
               f"coefficients, {fit.after:.1%} with the fitted ones{left}")
    if fit.after >= fit.before:
        raise UsageError(f"{quality}. Nothing was stored. Name runs with more different loads.")
    if fit.at_peak:
        raise UsageError(f"the fit ends at the peak that the data sheet of {arguments.kind} allows "
                         f"({', '.join(fit.at_peak)}). Nothing was stored. Check the kind's bandwidth "
                         "against the data sheet of your GPU.")
    root = project_root()
    path = coefficients_file(root / read_settings(root).baselines_dir, arguments.kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"engine": engine, "version": version, "measurements": len(points), "held_out_before": fit.before,
               "held_out_after": fit.after, "numbers": fit.numbers}
    write_whole(path, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())
    say(f"{quality}.\n{path}: written; --emulate {arguments.kind} uses it for {engine}")
    return 0


def _points(
    folder: Path, kind: str, origins: set[tuple[str, ...]], left_out: Counter[str]
) -> list[Point]:
    """The measurements of a run folder that can be replayed.

    Args:
        origins: gets host, hardware, engine and version of each measurement.
        left_out: gets the reason for each other measurement.

    Raises:
        UsageError: a test is an ERROR, or the runs are of another kind.
    """
    host, points = read_provenance(folder).host, list[Point]()
    for test in read_run(folder):
        if test.outcome == "ERROR":
            raise UsageError(f"{folder}: {test.test} is an ERROR: {test.ending.error or test.reason}. Its runs may be "
                             "invalid or of a throttled GPU. Leave out this run folder.")
        for measurement in test.measurements:
            conditions = measurement.conditions
            if (hardware := conditions.get("hardware", "")).removeprefix("emulated ") != kind:
                raise UsageError(f"{folder}: {test.test} was measured on {hardware}, not on {kind}. Name the kind of "
                                 "the runs: --kind NAME.")
            point = _point(measurement, kind)
            if isinstance(point, str):
                left_out[point] += 1
                continue
            origins.add((host, hardware, conditions.get("engine", ""), conditions.get(VERSION, "")))
            points.append(point)
    return points


def _point(measurement: Measurement, kind: str) -> Point | str:
    """What the emulator replays; why not, for a measurement that it cannot replay with equal work."""
    conditions, flags = measurement.conditions, stored_flags(measurement.conditions)
    tpot_ms, ttft_ms, failed, hits = map(measurement.value, ("tpot_mean", "ttft_mean", "error_rate",
                                                             "prefix_cache_hit_rate"))
    reasons = {
        "prefix hits": (hits or 0.0) > MOST_HIT_RATE,
        "an engine without an emulator": conditions.get("engine") not in LAUNCHES,
        "drafts": any(name.startswith("specul") for name in flags),
        "LMCache or several servers": conditions.get("lmcache", "none") != "none" or "router" in conditions,
    }
    if found := [reason for reason, holds in reasons.items() if holds]:
        return found[0]
    if tpot_ms is None or ttft_ms is None or failed:
        return "failed requests, or no mean TPOT and TTFT"
    try:
        workload = read_workload(measurement.workload)
    except SpecError:
        return "a workload that was made by code"
    requests = workload.requests(measurement.runs[0].seed)
    if any(isinstance(request.prompt, str) or request.after is not None for request in requests):
        return "texts, or turns of conversations"
    read, head = LAUNCHES[conditions["engine"]]
    launch = read([head, conditions["model"], *command_line(flags)], machine(kind, GPUS), {})
    return point_of(launch, requests, workload.concurrency, Means(ttft_ms, tpot_ms))


def _refuse_several(origins: set[tuple[str, ...]]) -> None:
    """Runs of several hosts, kinds, engines or versions are not fitted together.

    Raises:
        UsageError: the message names them.
    """
    for position, what in enumerate(ORIGIN):
        if len(found := sorted({origin[position] for origin in origins})) > 1:
            raise UsageError(f"the runs are of several {what}: {', '.join(found)}. Name run folders of one of these "
                             f"{what}.")
