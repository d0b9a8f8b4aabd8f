"""How far an emulated measurement is from the measurements that the emulator's step times were fitted on.

A verdict on the emulator shows that the test works. This module says what an emulated measurement has in common with
measurements on a GPU, and names the flags whose effect the emulator is known to miss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pytest_llmperf.results.conditions import VERSION, stored_flags

FITTED_KINDS = ("h100", "h200")
#: Models and engine versions of the measured runs: scripts/data/served_h100_h200.csv and docs/measured/h200.md.
FITTED_MODELS = (
    "llama-3.1-8b", "llama-3.1-70b", "qwen3-32b", "qwen3-235b-a22b", "qwen3.5-397b-a17b", "gpt-oss-120b", "deepseek-v3",
    "kimi-k2.5", "minimax-m2.5", "glm-5",
)  # fmt: skip
FITTED_VERSIONS = {
    "vllm": ("0.11.2", "0.12.0", "0.16.0", "0.18.0", "0.26.0"),
    "sglang": ("0.5.1.post1", "0.5.6.post2", "0.5.8.post1", "0.5.9", "0.5.15"),
}
NOT_FITTED = "data sheet only: not fitted"

#: Flag that differs between the sides of a claim → ratio of the sides that hosts measured, and ratio on the emulator
#: (docs/measured/h200.md, docs/measured/h100.md). Each emulated ratio is at least 1.3 times too large or too small.
MISSED = {
    "schedule_policy": "request throughput: 2.14 × measured, 3.2 × emulated",
    "max_num_seqs": "256 for 64 sequences, output throughput: 1.08 × measured, 1.64 × emulated",
    "max_num_batched_tokens": "4,096 for 256 tokens, p99 ITL: 3.11 × measured, 10.2 × emulated",
    "enable_prefix_caching": "prefixes of 256 to 2,048 tokens, mean TTFT: 1.8 × measured, 2.6 × emulated",
}


def kind_distance(kind: str) -> str:
    """What the step times of an emulated kind rest on."""
    return "step times fitted on this kind" if kind in FITTED_KINDS else NOT_FITTED


def distance(conditions: Mapping[str, str]) -> str:
    """What an emulated measurement has in common with the fitted runs; "" for a measurement on hardware.

    >>> distance({"hardware": "emulated h200", "engine": "vllm", "model": "phi-4-mini", "engine.version": "0.26.0"})
    'same kind, other model'
    >>> distance({"hardware": "emulated l4"}), distance({"hardware": "h200"})
    ('data sheet only: not fitted', '')
    """
    word, _, kind = conditions.get("hardware", "").partition(" ")
    if word != "emulated":
        return ""
    version, _, build = conditions.get(VERSION, "").partition("+emulated")
    if build:
        return "fitted on the runs of a host (llmperf fit)"
    if kind not in FITTED_KINDS:
        return NOT_FITTED
    others = [
        *(["other model"] if conditions.get("model") not in FITTED_MODELS else []),
        *(["other engine version"] if version not in FITTED_VERSIONS.get(conditions.get("engine", ""), ()) else []),
    ]
    return ", ".join(["same kind", *others]) if others else "fitted"


def notes(measured: Iterable[Mapping[str, str]]) -> list[str]:
    """The lines about a test's emulated measurements, without repetition; none for measurements on hardware.

    Args:
        measured: conditions of each measurement of the test.
    """
    emulated = [conditions for conditions in measured if distance(conditions)]
    grounds = [f"{conditions['hardware']}: {distance(conditions)}" for conditions in emulated]
    missed = [f"known to be missed by the emulator if {name} differs: {MISSED[name]}" for name in _differing(emulated)
              if name in MISSED]
    return list(dict.fromkeys([*grounds, *missed]))


def _differing(emulated: list[Mapping[str, str]]) -> Iterator[str]:
    """Names of flags that the measurements do not have in common."""
    each = [stored_flags(conditions) for conditions in emulated]
    for name in sorted({name for flags in each for name in flags}):
        if any(flags.get(name) != each[0].get(name) for flags in each):
            yield name
