"""docs/emulator_accuracy.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from emulator_fit.anchors import ANCHORS, CROWDS, Anchor
from emulator_fit.errors import Errors, Outcome, errors_of, outcomes
from emulator_fit.splits import COEFFICIENTS, read_splits
from pytest_llmperf.emulator.cost.coefficients import from_numbers
from pytest_llmperf.emulator.cost.shape import read_shape

TEXT = Path(__file__).with_name("accuracy.md")
HEADER = "| {} | runs | TPOT mean | TPOT median | TPOT bias | runs below saturation | TTFT median | TTFT bias |"
RULE = "|---|---|---|---|---|---|---|---|"


def text(root: Path) -> str:
    """The page, with every held-out run replayed."""
    splits = read_splits(root)
    outcomes_by_split = {split.name: outcomes(split, split.rows) for split in splits}
    folds = [outcome for name, of_fold in outcomes_by_split.items() if name.startswith("fold") for outcome in of_fold]
    transfer = outcomes_by_split["H100 → H200"]
    dense = [outcome for outcome in folds if outcome.row.dense]
    parts = {
                "summary": _table("tested on runs outside the fit",
                          {**_kinds("folds: ", folds), **_kinds("H100 → H200: ", transfer)}),
        "by_gpu": _table("engine, GPU, models", _groups(folds, _by_gpu)),
        "knee": _knee(dense),
        "steps": _steps(root, ANCHORS),
        "crowds": _steps(root, CROWDS),
        "provenance": json.loads((root / COEFFICIENTS).read_text(encoding="utf-8"))["provenance"]["summary"],
    }
    page = TEXT.read_text(encoding="utf-8")
    for name, content in parts.items():
        page = page.replace("{{" + name + "}}", content)
    return page


def _kinds(prefix: str, outcomes: list[Outcome]) -> dict[str, list[Outcome]]:
    dense = [outcome for outcome in outcomes if outcome.row.dense]
    named = {
        "dense": dense,
        "dense, vLLM": [outcome for outcome in dense if outcome.row.backend == "vllm"],
        "dense, SGLang": [outcome for outcome in dense if outcome.row.backend == "sglang"],
        "mixtures of experts": [outcome for outcome in outcomes if not outcome.row.dense],
    }
    return {prefix + name: group for name, group in named.items() if group}


def _by_gpu(outcome: Outcome) -> str:
    row = outcome.row
    return f"{row.backend}, {row.gpu}, {'dense' if row.dense else 'mixtures'}"


def _by_configuration(outcome: Outcome) -> str:
    row = outcome.row
    name = read_shape(row.model).name
    return f"{row.backend} {row.version}, {name} {row.weights}, {row.gpu}, {row.tensor_parallel}"


def _groups(outcomes: Iterable[Outcome], key: Callable[[Outcome], str]) -> dict[str, list[Outcome]]:
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(key(outcome), []).append(outcome)
    return dict(sorted(groups.items()))


def _table(title: str, groups: dict[str, list[Outcome]]) -> str:
    lines = [_line(name, errors_of(group)) for name, group in groups.items()]
    return "\n".join([HEADER.format(title), RULE, *lines])


def _line(name: str, errors: Errors) -> str:
    tpot = f"{errors.tpot_mean:.1f} % | {errors.tpot_median:.1f} % | {errors.tpot_bias:+.1f} %"
    if errors.ttft_median is None:
        return f"| {name} | {errors.runs} | {tpot} | 0 | – | – |"
    ttft = f"{errors.ttft_median:.1f} % | {errors.ttft_bias:+.1f} %"
    return f"| {name} | {errors.runs} | {tpot} | {errors.ttft_runs} | {ttft} |"


def _knee(outcomes: Iterable[Outcome]) -> str:
    lines = [
        "| run | KV cache, tokens | TPOT measured | emulated | TTFT measured | emulated | preempted |",
        "|---|---|---|---|---|---|---|",
    ]
    for outcome in sorted((o for o in outcomes if o.row.saturated), key=_by_configuration):
        row, means = outcome.row, outcome.means
        load = f"{row.input_tokens}/{row.output_tokens}, {row.concurrency} at once"
        held = row.config.num_blocks * row.config.block_size
        lines.append(
            f"| {_by_configuration(outcome)}; {load} | {held:,} | {row.tpot_ms:.1f} ms | {means.tpot_ms:.1f} ms "
            f"| {row.ttft_ms:,.0f} ms | {means.ttft_ms:,.0f} ms | {means.preemptions} |"
        )
    return "\n".join(lines)


def _steps(root: Path, anchors: Iterable[Anchor]) -> str:
    stored = json.loads((root / COEFFICIENTS).read_text(encoding="utf-8"))["engines"]
    lines = ["| step | measured | emulated |", "|---|---|---|"]
    for anchor in anchors:
        emulated = anchor.predicted_ms(from_numbers(stored[anchor.engine], "stored"))
        kind = f"{anchor.decodes} decoding at {anchor.context:,} tokens, tp {anchor.tensor_parallel}"
        if anchor.chunk:
            kind += f", {anchor.chunk:,} prompt tokens after {anchor.before:,}"
        if not anchor.overlapped:
            kind += ", no asynchronous scheduling"
        lines.append(f"| {anchor.engine}: {kind} | {anchor.milliseconds} ms | {emulated:.2f} ms |")
    return "\n".join(lines)
