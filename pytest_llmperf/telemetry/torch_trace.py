"""What a trace of PyTorch's profiler says about the time of a server: the file is read event by event.

A GPU trace is divided by its kernels. A trace without kernels is divided by the operators of its busiest thread, which
on a CPU is the thread that executes the model.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pytest_llmperf.errors import EngineError

#: NCCL's, vLLM's own, PyTorch's over symmetric memory, FlashInfer's, and those of a CPU's ranks.
ALL_REDUCE = re.compile(r"all_?reduce|cross_device_reduce|multimem", re.IGNORECASE)
#: Category → names of its kernels and operators. In a moment with several of them the first category counts, so
#: communication behind computation counts as computation, and an operator counts with all that runs inside it.
CATEGORIES: Mapping[str, re.Pattern[str]] = {
    "attention": re.compile(r"attention|attn|flash(?!infer)|fmha|sdpa|kv_?cache|Batch(?:Decode|Prefill)",
                            re.IGNORECASE),
    "matrix": re.compile(r"gemm|gemv|matmul|linear|cutlass|cublas|nvjet|xmma|marlin|fused_moe"
                         r"|(?:^|[_:])(?:add|b|baddb)?mm(?:_|$)", re.IGNORECASE),
    "communication": re.compile(f"{ALL_REDUCE.pattern}|nccl|gloo|c10d::|shm_(?:all|gather|send|recv)|all_?gather"
                                "|reduce_?scatter|all_?to_?all|deep_?ep", re.IGNORECASE),
}
NAMES = (*CATEGORIES, "other")
KERNELS, OPERATORS = ("kernel", "gpu_memcpy", "gpu_memset"), ("cpu_op",)  # of an event's "cat"
EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
CHUNK_CHARACTERS = 2**20
MOST_EVENT_CHARACTERS = 2**23
_REMEDY = "Run the test with --llmperf-profile again."


@dataclass(frozen=True, slots=True)
class Breakdown:
    """How the traced time of one rank is divided; the parts and the idle time add up to the window.

    Args:
        device: "gpu": kernels; "cpu": operators of the busiest thread.
        window_us: from the begin of the first event to the end of the last one, µs.
        attention_us, matrix_us, communication_us, other_us: time of each category, µs.
        all_reduces: number of all-reduces.
        all_reduce_us: sum of their durations, µs; an all-reduce waits for the slowest rank.
        all_reduce_median_us: median duration, µs; None without all-reduces.
        all_reduce_name: the most frequent name; "" without all-reduces.
    """

    device: str
    window_us: float
    attention_us: float
    matrix_us: float
    communication_us: float
    other_us: float
    all_reduces: int = 0
    all_reduce_us: float = 0.0
    all_reduce_median_us: float | None = None
    all_reduce_name: str = ""

    @property
    def idle_us(self) -> float:
        """Time in which no kernel and no operator ran, µs."""
        return self.window_us - self.attention_us - self.matrix_us - self.communication_us - self.other_us

    @property
    def shares(self) -> dict[str, float]:
        """Share of the window of each category and of the idle time, 0…1."""
        return {name: getattr(self, f"{name}_us") / self.window_us for name in (*NAMES, "idle")}

    @property
    def all_reduce_share(self) -> float:
        """All-reduces as a share of the window, 0…1."""
        return self.all_reduce_us / self.window_us


@dataclass(slots=True)
class _Lane:
    """Events of one GPU or of one thread, column by column: a trace has hundreds of thousands."""

    starts_us: array[float] = field(default_factory=lambda: array("d"))
    ends_us: array[float] = field(default_factory=lambda: array("d"))
    categories: array[int] = field(default_factory=lambda: array("b"))
    all_reduces_us: array[float] = field(default_factory=lambda: array("d"))
    all_reduce_names: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, start_us: float, duration_us: float, category: int) -> None:
        self.starts_us.append(start_us)
        self.ends_us.append(start_us + duration_us)
        self.categories.append(category)
        if ALL_REDUCE.search(name):
            self.all_reduces_us.append(duration_us)
            self.all_reduce_names[name] += 1

    def times_us(self) -> list[float]:
        """Time of each category: a moment counts for the first category that has an event running then."""
        times_us, running = [0.0] * len(NAMES), [0] * len(NAMES)
        begins = sorted(zip(self.starts_us, self.categories, strict=True))
        ends = sorted(zip(self.ends_us, self.categories, strict=True))
        at_us, begun = begins[0][0], 0
        for end_us, ended in ends:
            while begun < len(begins) and begins[begun][0] <= end_us:
                start_us, category = begins[begun]
                _add_time(times_us, running, start_us - at_us)
                at_us = start_us
                running[category] += 1
                begun += 1
            _add_time(times_us, running, end_us - at_us)
            at_us = end_us
            running[ended] -= 1
        return times_us

    def breakdown(self, device: str) -> Breakdown:
        window_us = max(self.ends_us) - min(self.starts_us)
        names = self.all_reduce_names.most_common(1)
        attention_us, matrix_us, communication_us, other_us = self.times_us()
        return Breakdown(
            device, window_us, attention_us, matrix_us, communication_us, other_us,
            all_reduces=len(self.all_reduces_us),
            all_reduce_us=sum(self.all_reduces_us),
            all_reduce_median_us=median(self.all_reduces_us) if self.all_reduces_us else None,
            all_reduce_name=names[0][0] if names else "",
        )


def _add_time(times_us: list[float], running: list[int], elapsed_us: float) -> None:
    for category, count in enumerate(running):
        if count:
            times_us[category] += elapsed_us
            return


def breakdown(trace: Path) -> Breakdown | None:
    """How the time of a rank was spent; None for a trace without kernels and operators.

    Args:
        trace: a file in Chrome's trace format, gzipped.

    Raises:
        EngineError: the file is cut off, or is no such trace.
    """
    kernels: defaultdict[object, _Lane] = defaultdict(_Lane)
    operators: defaultdict[object, _Lane] = defaultdict(_Lane)
    category_by_name: dict[str, int] = {}
    try:
        for event in trace_events(trace):
            kind = event.get("cat")
            if kind not in (*KERNELS, *OPERATORS):
                continue
            name = str(event["name"])
            if name not in category_by_name:
                category_by_name[name] = NAMES.index(category_of(name))
            lane = kernels[""] if kind in KERNELS else operators[event.get("tid")]
            lane.add(name, float(event["ts"]), float(event["dur"]), category_by_name[name])
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"The trace {trace.name} has an event without name, time or duration: {error!r}. "
                          f"{_REMEDY}") from error
    lanes, device = (kernels, "gpu") if kernels else (operators, "cpu")
    broken_down = [lane.breakdown(device) for lane in lanes.values()]
    return max(broken_down, key=lambda each: each.window_us - each.idle_us, default=None)


def category_of(name: str) -> str:
    """Category of a kernel or an operator, by its name."""
    return next((category for category, names in CATEGORIES.items() if names.search(name)), "other")


def trace_events(
    trace: Path, *, chunk_characters: int = CHUNK_CHARACTERS, most_characters: int = MOST_EVENT_CHARACTERS
) -> Iterator[dict[str, Any]]:
    """The events of a trace, one at a time: an unpacked trace may have a gigabyte.

    Args:
        trace: a file in Chrome's trace format, gzipped.
        chunk_characters: number of characters that are read at a time.
        most_characters: length of the longest event that is read.

    Raises:
        EngineError: the file is cut off, or is no such trace.
    """
    decoder, text, begun = json.JSONDecoder(), "", False
    try:
        with gzip.open(trace, "rt", encoding="utf-8", errors="replace") as file:
            while chunk := file.read(chunk_characters):
                text += chunk
                if not begun:
                    if (match := EVENTS.search(text)) is None:
                        _check_length(trace, text, most_characters)
                        continue
                    text, begun = text[match.end():], True
                at = 0
                while (start := _next_event(text, at)) is not None:
                    if text[start] == "]":
                        return
                    try:
                        event, at = decoder.raw_decode(text, start)
                    except json.JSONDecodeError:
                        break  # the rest of the event is in the next chunk
                    if isinstance(event, dict):
                        yield event
                text = text[at:]
                _check_length(trace, text, most_characters)
    except (OSError, EOFError, zlib.error) as error:
        raise EngineError(f"The trace {trace.name} cannot be read: {error}. {_REMEDY}") from error
    raise EngineError(f"The trace {trace.name} ends before its last event: it was cut off, or is no trace. {_REMEDY}")


def _next_event(text: str, at: int) -> int | None:
    """Where the next event begins, or the end of the list; None if that is not in the text yet."""
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at if at < len(text) else None


def _check_length(trace: Path, text: str, most_characters: int) -> None:
    if len(text) > most_characters:
        raise EngineError(f"The trace {trace.name} has an event of more than {most_characters:,} characters. "
                          f"{_REMEDY}")
