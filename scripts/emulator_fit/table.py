"""docs/emulator_accuracy.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from statistics import fmean, median

from emulator_fit.anchors import ANCHORS, CROWDS, Anchor
from emulator_fit.errors import REPLAYS, Outcome, read_outcomes
from emulator_fit.splits import COEFFICIENTS, HELD_OUT
from pytest_llmperf.emulator.cost.coefficients import family_of, from_numbers

TEXT = Path(__file__).with_name("accuracy.md")
HEADER = ("| engine, GPU, models | outside the fit | runs | TPOT mean, median, bias | runs below saturation "
          "| TTFT median, bias |\n|---|---|---|---|---|---|")


def digest(root: Path) -> str:
    """Digest of the shipped coefficients, of the fits that leave runs out, and of the replays; the page names it."""
    return sha256(b"".join((root / path).read_bytes() for path in (COEFFICIENTS, HELD_OUT, REPLAYS))).hexdigest()[:16]


def text(root: Path) -> str:
    """The page, from the stored replays."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in read_outcomes(root):
        out = left_out(outcome)
        groups.setdefault((models(outcome), out), []).append(outcome)
        groups.setdefault(("**all dense**" if outcome.row.dense else "**all mixtures**", out), []).append(outcome)
    shipped = json.loads((root / COEFFICIENTS).read_text(encoding="utf-8"))
    lines = [_line(*key, groups[key]) for key in sorted(groups, key=_place)]
    lines += [_steps("steps of today's versions, h200", "nothing", ANCHORS, shipped["engines"]),
              _steps("steps of 64 and 192 sequences, h200", "these steps", CROWDS, shipped["engines"])]
    parts = {
        "table": "\n".join([HEADER, *lines]),
        "provenance": shipped["provenance"]["summary"],
        "digest": digest(root),
    }
    page = TEXT.read_text(encoding="utf-8")
    for name, content in parts.items():
        page = page.replace("{{" + name + "}}", content)
    return page


def left_out(outcome: Outcome) -> str:
    """What the fit that a run was replayed with had left out."""
    outs = {"fold": "the configuration", "runs": "the run"}
    return outs.get(outcome.split.partition(" ")[0], "all H200")


def models(outcome: Outcome) -> str:
    """Engine, GPU and kind of model: a line of the table."""
    row = outcome.row
    return f"{row.backend}, {row.gpu}, {family_of(row.config).partition(' ')[2] or 'dense'}"


def _place(key: tuple[str, str]) -> tuple[bool, str, str]:
    """Sums last."""
    return (key[0].startswith("*"), *key)


def _line(name: str, out: str, members: Sequence[Outcome]) -> str:
    ttft = [outcome.ttft for outcome in members if not outcome.row.saturated]
    bias = f"{median(map(abs, ttft)):.1%}, {median(ttft):+.1%}" if ttft else "–"
    return f"| {name} | {out} | {len(members)} | {_tpot([o.tpot for o in members])} | {len(ttft)} | {bias} |"


def _steps(name: str, out: str, anchors: Sequence[Anchor], engines: dict[str, dict[str, float]]) -> str:
    errors = [anchor.predicted_ms(from_numbers(engines[anchor.engine], "stored")) / anchor.milliseconds - 1
              for anchor in anchors]
    return f"| {name} | {out} | {len(errors)} | {_tpot(errors)} | 0 | – |"


def _tpot(errors: Sequence[float]) -> str:
    return f"{fmean(map(abs, errors)):.1%}, {median(map(abs, errors)):.1%}, {fmean(errors):+.1%}"
