"""Compares files of other load generators: the loads must be equal, and each repeat counts as one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_llmperf.errors import UsageError
from pytest_llmperf.judging.change import MADE_IN_TURN, TOOL
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.report.release import ComparedTest, compare_runs
from pytest_llmperf.results.measurement import Measurement, TestResult
from pytest_llmperf.results.tool_files import ToolRun, read_tool_runs

PRIMARIES = ("itl_p50", "tpot_mean", "ttft_p50")
#: Largest share by which mean tokens per request of two equal loads differ, of prompts and of answers.
TOKEN_TOLERANCE = (0.02, 0.05)
Load = tuple[tuple[str, str], ...]


def compare_tool_files(before: Sequence[Path], after: Sequence[Path], *, others: bool = False) -> list[ComparedTest]:
    """One comparison a load, in the order of the loads' texts.

    Args:
        before, after: files, or folders of files, of one tool.
        others: whether to compare non-primary metrics as well.

    Raises:
        UsageError: a file cannot be read, two tools or two loads are compared, or nothing shows the spread of repeats.
    """
    sides = [[run for path in side for run in read_tool_runs(path)] for side in (before, after)]
    by_tool = {run.tool: run for run in [*sides[1], *sides[0]]}
    if len(by_tool) > 1:
        named = " and ".join(f"{run.origin} is of {tool}" for tool, run in sorted(by_tool.items()))
        raise UsageError(f"{named}. Load generators have different errors, and some use one word for two formulas. "
                         "Measure both sides with one tool.")
    old, new = ({_load(run): [each for each in side if _load(each) == _load(run)] for run in side} for side in sides)
    _check_loads(old, new)
    compared = []
    for load, runs in sorted(new.items()):
        _check_spread(old[load], runs)
        numbers = _seeds(old[load], runs)
        in_turn = _are_in_turn(old[load], runs)
        results = [_result(load, side, numbers, in_turn) for side in (old[load], runs)]
        compared += compare_runs(results[:1], results[1:], others=others)
    return compared


def _load(run: ToolRun) -> Load:
    return tuple(sorted(run.load.items()))


def _check_loads(old: Mapping[Load, list[ToolRun]], new: Mapping[Load, list[ToolRun]]) -> None:
    """Raise UsageError if a load has no equal load on the other side."""
    for load in [*(old.keys() - new.keys()), *(new.keys() - old.keys())]:
        here, there = (old, new) if load in old else (new, old)
        nearest = max(there, key=lambda other: len({*load} & {*other}))
        fields = sorted({name for name, _ in {*load} ^ {*nearest}})
        differing = ", ".join(f"{name} {dict(load).get(name, 'absent')} and {dict(nearest).get(name, 'absent')}"
                              for name in fields)
        raise UsageError(f"{here[load][0].origin} and {there[nearest][0].origin} have different loads: {differing}. "
                         "Name repeats of one load: llmperf diff OLD NEW.")
    for load, runs in new.items():
        for position, what in enumerate(("prompts", "answers")):
            means = [_mean_tokens(side, position) for side in (old[load], runs)]
            if _differ(means[0], means[1], TOKEN_TOLERANCE[position]):
                raise UsageError(f"{old[load][0].origin} and {runs[0].origin} have different loads: {what} of "
                                 f"{means[0]:.4g} and {means[1]:.4g} tokens on average. Name repeats of one load: "
                                 "llmperf diff OLD NEW.")


def _differ(before: float | None, after: float | None, tolerance: float) -> bool:
    """Whether mean token counts differ by more than the share, and by more than one token."""
    return before is not None and after is not None and abs(after - before) > max(1.0, tolerance * before)


def _mean_tokens(runs: Sequence[ToolRun], position: int) -> float | None:
    counts = [count for run in runs if (count := run.tokens[position])]
    return sum(counts) / len(counts) if counts else None


def _check_spread(old: Sequence[ToolRun], new: Sequence[ToolRun]) -> None:
    for side in (old, new):
        if len(side) == 1 and not side[0].detailed:
            raise UsageError(f"{side[0].origin}: one repeat, and the aggregates alone: nothing shows how much repeats "
                             "differ. Make at least 3 repeats of each side.")


def _seeds(old: Sequence[ToolRun], new: Sequence[ToolRun]) -> dict[tuple[int, ...], int]:
    """Lengths of prompts → number of the seed.

    If both sides have the same seeds, repeats are paired by seed. Else all repeats count as one seed, and the spread
    between runs includes the spread between seeds.
    """
    before, after = ({run.prompts for run in side} for side in (old, new))
    same = before == after and () not in before
    return {prompts: number if same else 0 for number, prompts in enumerate(sorted(before | after))}


def _are_in_turn(old: Sequence[ToolRun], new: Sequence[ToolRun]) -> bool:
    """Whether the sides were measured in turn, A B B A or A B A B, by the times in the files."""
    runs = sorted([*((run.made_at, 0) for run in old), *((run.made_at, 1) for run in new)])
    order = [side for _, side in runs]
    pairs = list(zip(order[::2], order[1::2], strict=False))
    return len(old) == len(new) > 1 and all(time for time, _ in runs) and all(sum(pair) == 1 for pair in pairs)


def _result(
    load: Load, runs: Sequence[ToolRun], seeds: Mapping[tuple[int, ...], int], in_turn: bool
) -> TestResult:
    tool, text = runs[0].tool, ", ".join(f"{name} {value}" for name, value in load)
    conditions = {"hardware": "unknown", TOOL: tool, "workload": text, **({MADE_IN_TURN: "yes"} if in_turn else {})}
    judged = tuple(replace(run.run, seed=seeds[run.prompts], start_id=number) for number, run in enumerate(runs))
    closed = dict(load).get("request_rate") in ("inf", None)
    names = [find(name).name for name in (*PRIMARIES, *(("output_throughput",) if closed else ()))]
    measurement = Measurement(tool, text, conditions, judged)
    primaries = tuple(name for name in names if measurement.value_with_failures(name) is not None)
    return TestResult(f"{tool}: {text}", True, None, (replace(measurement, primaries=primaries),), ())
