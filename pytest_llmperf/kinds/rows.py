"""One row a hardware kind: markers, detection, rooflines and the emulator read this table.

The emulator shares no code with the rest of the package. It reads this table because the rows are data of datasheets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from math import inf

GIB = 2**30


@dataclass(frozen=True, slots=True)
class HardwareKind:
    """One GPU model. Peaks are those of its datasheet.

    Args:
        name: marker of tests, a Python identifier: "h200", "rtx_4090".
        nvml_words: words that the name of the GPU model in NVML has, in lower case.
        other_words: words of slower models with a similar name. A GPU whose name has one of these words is not of this
            kind.
        nvml_memory_gib: total memory that NVML reports. Limits of suites are written for it: an A100 40GB is another
            GPU.
        cuda_memory_gib: total memory that CUDA reports. An engine's utilization flag is a share of this number.
        bandwidth_bytes_per_s: of that memory.
        cache_bytes: second-level cache. This part of the weights need not be read again in the next step.
        bf16_flops, fp8_flops: peak of dense matrix products, FLOP/s; None: the GPU has no fp8.
        pcie_bytes_per_s: between GPU and host, one direction.
        link_bytes_per_s: NVLink, one direction; None: GPUs talk over PCIe.
        power_w: power limit; None: unknown.
        gpu_hour_price: amount, currency and date, "2.50 USD 2026-11-01"; None: not stated.
    """

    name: str
    nvml_words: frozenset[str]
    nvml_memory_gib: float
    cuda_memory_gib: float
    bandwidth_bytes_per_s: float
    cache_bytes: float
    bf16_flops: float
    pcie_bytes_per_s: float
    fp8_flops: float | None = None
    link_bytes_per_s: float | None = None
    other_words: frozenset[str] = frozenset()
    power_w: float | None = None
    gpu_hour_price: str | None = None

    @property
    def nvml_memory_bytes(self) -> int:
        """Total memory as NVML reports it, in bytes."""
        return round(self.nvml_memory_gib * GIB)

    @property
    def memory_bytes(self) -> int:
        """Total memory as CUDA reports it, in bytes."""
        return int(self.cuda_memory_gib * GIB)

    @property
    def peer_bytes_per_s(self) -> float:
        """Between two GPUs, one direction: NVLink where there is one."""
        return self.link_bytes_per_s or self.pcie_bytes_per_s

    def flops(self, operand_bytes: int) -> float:
        """Peak of matrix products with operands of 2 bytes (bfloat16) or 1 byte (fp8 where the GPU has it), FLOP/s."""
        return self.fp8_flops if operand_bytes == 1 and self.fp8_flops is not None else self.bf16_flops


_WORDS = ("nvml_words", "other_words")
_MEMORY_TOLERANCE = 0.08  # NVML shows less where ECC takes some


def kind_of_row(name: str, row: Mapping[str, object]) -> HardwareKind:
    """The kind of a row of texts, numbers and lists, as a project's settings or the emulator's command line have it.

    Args:
        name: the marker.
        row: field of `HardwareKind` → value, without the name. `dense` = true states that the peaks are dense.

    Raises:
        ValueError: the text lists everything that is wrong with the row.
    """
    columns = {field.name: field for field in fields(HardwareKind)[1:]}
    row, dense = {key: value for key, value in row.items() if key != "dense"}, row.get("dense") is True
    problems = [] if name.isidentifier() else [f"{name!r} is no name: write a Python identifier, rtx_4090"]
    problems += [f"{key}: unknown; known: {', '.join(columns)}" for key in row.keys() - columns.keys()]
    problems += [f"{key} is missing" for key, column in columns.items()
                 if key not in row and column.default is MISSING]
    values: dict[str, object] = {}
    for key in columns.keys() & row.keys():
        values[key], problem = _cell(key, row[key])
        problems += [f"{key} = {row[key]!r}: {problem}"] if problem else []
    if problems:
        raise ValueError("; ".join(sorted(problems)))
    kind = HardwareKind(name, **values)  # type: ignore[arg-type]
    if not dense and (doubtful := _doubtful_peak(kind)):
        raise ValueError(f"{doubtful} Is this the figure with sparsity? Data sheets print that figure, which is twice "
                         "the dense one, beside it or alone. Write the dense figure. If this is the dense figure, add "
                         "dense = true")
    return kind


_MOST_FLOPS_PER_BYTE = 450  # bfloat16 FLOP/s over bytes/s of memory: 37 to 420 on data sheets of twenty GPUs, dense
_MOST_FP8_OVER_BF16 = 3.0  # 2 where both figures are dense


def _doubtful_peak(kind: HardwareKind) -> str:
    """What suggests that a peak counts products with zeros that the GPU skips; "" if nothing does."""
    shipped = max((row.bf16_flops for row in SHIPPED if row.nvml_words <= kind.nvml_words), default=inf)
    if kind.fp8_flops is not None and kind.fp8_flops > _MOST_FP8_OVER_BF16 * kind.bf16_flops:
        return f"fp8_flops = {kind.fp8_flops:g} is {kind.fp8_flops / kind.bf16_flops:.1f} times bf16_flops."
    if kind.bf16_flops > 1.5 * shipped:
        return f"bf16_flops = {kind.bf16_flops:g}, and a shipped kind of this name has {shipped:g}."
    per_byte = kind.bf16_flops / kind.bandwidth_bytes_per_s
    if per_byte > _MOST_FLOPS_PER_BYTE:
        return f"bf16_flops = {kind.bf16_flops:g} is {per_byte:.0f} FLOP for each byte of bandwidth_bytes_per_s."
    return ""


def same_gpu(kind: HardwareKind, others: Iterable[HardwareKind]) -> str | None:
    """The name of another kind that stands for the same GPUs: same words, and nearly the same memory."""
    return next((other.name for other in others if other.name != kind.name and other.nvml_words == kind.nvml_words
                 and fits_memory(other, kind.nvml_memory_bytes)), None)


def fits_memory(kind: HardwareKind, memory_bytes: int | None) -> bool:
    """Whether a GPU with this memory, as NVML reports it, can be of that kind; an unknown memory can."""
    return memory_bytes is None or abs(memory_bytes / kind.nvml_memory_bytes - 1) <= _MEMORY_TOLERANCE


def row_of_kind(kind: HardwareKind) -> dict[str, object]:
    """The row from which `kind_of_row` makes an equal kind; JSON and TOML can hold the row."""
    values = {"dense": True, **{field.name: getattr(kind, field.name) for field in fields(kind)[1:]}}
    return {key: sorted(value) if key in _WORDS else value for key, value in values.items()
            if value not in (None, frozenset())}


def words_of(name: str) -> frozenset[str]:
    """The words of a GPU's name, in lower case.

    >>> sorted(words_of("NVIDIA A100-SXM4-80GB"))
    ['80gb', 'a100', 'nvidia', 'sxm4']
    """
    return frozenset(re.findall(r"[a-z0-9]+", name.lower()))


def _cell(key: str, value: object) -> tuple[object, str]:
    """The value of a field, and what is wrong with it."""
    if key in _WORDS:
        words = [value] if isinstance(value, str) else value
        if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words) or not words:
            return None, 'must be words of the name that nvidia-smi shows: ["rtx", "4090"]'
        parts = words_of(" ".join(words))
        if glued := next((part for part in parts if re.match(r"(rtx|gtx|quadro|geforce|nvidia|tesla).", part)), None):
            return None, f'no name that nvidia-smi -L shows has the word {glued!r}; separate words: ["rtx", "4090"]'
        if key == "nvml_words" and not re.search(r"\d", " ".join(parts)):
            return None, 'these words are in the names of many GPU models; add the model\'s own: ["rtx", "4090"]'
        return parts, ""
    if key == "gpu_hour_price":
        return value, "" if isinstance(value, str) and value else "must be a text"
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf
    return value, "" if good else "must be a number above 0"


# Data sheets of the makers; docs/gpu_runners.md names each. FLOP/s are dense. Memory as NVML and CUDA (or AMD SMI and
# HIP) report it on such GPUs. MI300X: `link_bytes_per_s` is of one pair, and `cache_bytes` is the Infinity Cache.
L4 = HardwareKind(
    "l4", frozenset({"l4"}), nvml_memory_gib=22.5, cuda_memory_gib=22.03, bandwidth_bytes_per_s=300e9,
    cache_bytes=48e6, bf16_flops=121e12, fp8_flops=242e12, pcie_bytes_per_s=32e9, power_w=72.0,
)
A100 = HardwareKind(
    "a100", frozenset({"a100"}), nvml_memory_gib=80.0, cuda_memory_gib=79.15,
    bandwidth_bytes_per_s=2.039e12, cache_bytes=40e6, bf16_flops=312e12, pcie_bytes_per_s=32e9,
    link_bytes_per_s=300e9, power_w=400.0,
)
H100 = HardwareKind(
    "h100", frozenset({"h100"}), nvml_memory_gib=80.0, cuda_memory_gib=79.19,
    bandwidth_bytes_per_s=3.35e12, cache_bytes=50e6, bf16_flops=989e12, fp8_flops=1979e12, pcie_bytes_per_s=64e9,
    link_bytes_per_s=450e9, other_words=frozenset({"pcie", "nvl", "hbm2e"}), power_w=700.0,
)
H200 = HardwareKind(
    "h200", frozenset({"h200"}), nvml_memory_gib=140.4, cuda_memory_gib=139.81,
    bandwidth_bytes_per_s=4.8e12, cache_bytes=50e6, bf16_flops=989e12, fp8_flops=1979e12, pcie_bytes_per_s=64e9,
    link_bytes_per_s=450e9, power_w=700.0,
)
B200 = HardwareKind(
    "b200", frozenset({"b200"}), nvml_memory_gib=179.06, cuda_memory_gib=178.35, bandwidth_bytes_per_s=8e12,
    cache_bytes=126e6, bf16_flops=2250e12, fp8_flops=4500e12, pcie_bytes_per_s=64e9, link_bytes_per_s=900e9,
    power_w=1000.0,
)
L40S = HardwareKind(
    "l40s", frozenset({"l40s"}), nvml_memory_gib=44.99, cuda_memory_gib=44.53, bandwidth_bytes_per_s=864e9,
    cache_bytes=96e6, bf16_flops=362e12, fp8_flops=733e12, pcie_bytes_per_s=32e9, power_w=350.0,
)
A10 = HardwareKind(
    "a10", frozenset({"a10"}), nvml_memory_gib=22.49, cuda_memory_gib=21.99, bandwidth_bytes_per_s=600e9,
    cache_bytes=6e6, bf16_flops=125e12, pcie_bytes_per_s=32e9, power_w=150.0,
)
RTX_4090 = HardwareKind(
    "rtx_4090", frozenset({"rtx", "4090"}), nvml_memory_gib=23.99, cuda_memory_gib=23.64,
    bandwidth_bytes_per_s=1.008e12, cache_bytes=72e6, bf16_flops=165.2e12, fp8_flops=330.3e12,
    pcie_bytes_per_s=32e9, other_words=frozenset({"d", "laptop"}), power_w=450.0,
)
MI300X = HardwareKind(
    "mi300x", frozenset({"mi300x"}), nvml_memory_gib=191.98, cuda_memory_gib=191.98, bandwidth_bytes_per_s=5.3e12,
    cache_bytes=256e6, bf16_flops=1307.4e12, fp8_flops=2614.9e12, pcie_bytes_per_s=64e9, link_bytes_per_s=64e9,
    power_w=750.0,
)
SHIPPED = tuple(row for row in list(globals().values()) if isinstance(row, HardwareKind))  # named in SHIPPED_NAMES
