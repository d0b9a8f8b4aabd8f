"""Names of hardware kinds, for every run of pytest. The rows behind the names are loaded when one is first used."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_llmperf.doors import Door

if TYPE_CHECKING:
    from pytest_llmperf.kinds.rows import HardwareKind

CPU = "cpu"
OTHER_GPU = "other-gpu"  # a GPU model that no row describes; its results must not pass for a CPU's
SHIPPED_NAMES = ("l4", "a100", "h100", "h200", "b200", "l40s", "a10", "rtx_4090", "mi300x")


def _is_row(value: object) -> bool:
    from pytest_llmperf.kinds.rows import HardwareKind

    return isinstance(value, HardwareKind)


#: Every GPU kind that this process knows: the shipped kinds and those of projects and packages.
GPU_KINDS: Door[HardwareKind] = Door("kind", "a HardwareKind", _is_row,
                                     {name: f"pytest_llmperf.kinds.rows:{name.upper()}" for name in SHIPPED_NAMES})


def kind_names() -> tuple[str, ...]:
    """Names of all hardware kinds: the GPU kinds, and "cpu"."""
    return (*GPU_KINDS, CPU)


# Names of GPU products as people write them in markers: t4, l40s, a10g, rtx_4090, rtx_pro_6000, mi300x, gb200.
_PRODUCT = (
    r"(nvidia_|amd_)?("
    r"t4|l4|l20|l40s?|a10g?|a16|a30|a40|a100|a800|h20|h100|h200|h800|b100|b200|b300|v100|p40|p100|k80|gh200|gb200|gb300"
    r"|(rtx|gtx|quadro)_?(a|pro_)?\d{4}(_?(ti|super|ada))*|mi\d{2,3}[ax]?|gaudi_?\d?|arc_?[ab]\d{3})"
    r"(_?(sxm\d?|pcie|nvl|\d{2,3}gb))*"
)
_LEAST = 3  # letters of a name that may be a mistyped kind: l1 and h2 are too short to tell


def like_a_gpu(name: str) -> bool:
    """Whether a marker's name is a GPU product's, or one edit away from the name of a GPU kind.

    >>> [like_a_gpu(name) for name in ("l40s", "h20", "rtx_4090", "h2000", "slow", "p99")]
    [True, True, True, True, False, False]
    """
    lower = name.lower()
    return re.fullmatch(_PRODUCT, lower) is not None or any(
        len(lower) >= _LEAST <= len(kind) and _one_edit(lower, kind) for kind in GPU_KINDS
    )


def _one_edit(name: str, kind: str) -> bool:
    """Whether one inserted, deleted, replaced or swapped character makes `kind` of `name`."""
    start = next((i for i, (a, b) in enumerate(zip(name, kind, strict=False)) if a != b), min(len(name), len(kind)))
    left, right = name[start:], kind[start:]
    swapped = left[:2] == right[1::-1] and left[2:] == right[2:]
    return left[1:] == right[1:] or left[1:] == right or left == right[1:] or (len(right) > 1 and swapped)
