"""Results of other load generators, read as runs: `vllm bench serve`, `sglang.bench_serving`, AIPerf and GuideLLM.

A file is recognised by its content. If the file has the times of each request, the metrics are computed from these
times and include failed requests. Else the metrics are the statistics of the tool that have the same formula.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Any

from pytest_llmperf.bounded_file import JSON_LIMIT_BYTES, MIB, held_bytes, open_regular, read_file, read_packed
from pytest_llmperf.errors import UsageError, echo, on_one_line
from pytest_llmperf.metrics.failed_as_infinite import statistics_with_failures
from pytest_llmperf.metrics.run import measure
from pytest_llmperf.model.record import Outcome, RequestRecord
from pytest_llmperf.results.measurement import Run
from pytest_llmperf.results.strict_json import unique

VLLM, VLLM_RUST = "vllm bench serve", "vllm bench serve (Rust client)"
SGLANG, AIPERF, GUIDELLM = "sglang.bench_serving", "AIPerf", "GuideLLM"
PACKED = (".json.gz", ".jsonl.gz")
SUFFIXES = (".json", ".jsonl", *PACKED)
SNIFFED_BYTES = 4096
#: AIPerf's requests, and its aggregates, which state the load.
AIPERF_REQUESTS, AIPERF_SUMMARY = "profile_export.jsonl", "profile_export_aiperf.json"
STATISTICS = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
#: Latency → the word of `vllm bench serve` and `sglang.bench_serving` for the same formula.
LATENCIES = {"ttft": ("ttft",), "tpot": ("tpot",), "itl": ("itl",), "e2el": ("e2el", "e2e_latency")}
#: Keys that only this kind of file has → what it is, and which file to name instead.
REFUSED = (
    ({"avg_latency", "latencies"}, "a result of vllm bench latency, which sends one batch. Name a result of "
     "vllm bench serve"),
    ({"elapsed_time", "num_requests"}, "a result of vllm bench throughput, which has no latencies. Name a result of "
     "vllm bench serve"),
    ({"benchmark", "metric"}, "a result in PyTorch's benchmark format, which has aggregates alone. Name the .json file "
     "of vllm bench serve beside it"),
    ({"input_config", "request_latency"}, "AIPerf's or GenAI-Perf's aggregates alone. Name profile_export.jsonl of "
     "AIPerf, which has the requests"),
)


@dataclass(frozen=True, slots=True)
class ToolRun:
    """One repeat of a benchmark by another tool.

    Args:
        origin: file; of a file with several repeats also the line or the benchmark.
        tool: name of the tool.
        load: what must be equal on both sides: name → value as text.
        tokens: mean tokens per request, of prompts and of answers; None if the file lacks the number.
        prompts: prompt tokens of each request; empty if the file lacks the numbers.
        made_at: sortable time of the repeat; "" if the file lacks the time.
        detailed: whether the file has the times of each request.
        run: its metrics.
    """

    origin: str
    tool: str
    load: Mapping[str, str]
    tokens: tuple[float | None, float | None]
    prompts: tuple[int, ...]
    made_at: str
    detailed: bool
    run: Run


def is_tool_side(path: Path) -> bool:
    """Whether a path is a JSON file, or a folder with JSON files that is no run folder."""
    if path.is_dir():
        return not (path / "tests").exists() and bool(_files_in(path))
    try:
        with open_regular(path) as file:
            head = file.read(SNIFFED_BYTES)
    except OSError:
        return False
    if path.name.endswith(PACKED):
        return True
    return head.decode(json.detect_encoding(head), "replace").lstrip()[:1] in ("{", "[")


def read_tool_runs(path: Path) -> list[ToolRun]:
    """Every repeat in a file of a tool, or in the files of a folder.

    Raises:
        UsageError: a file is of no known tool, is damaged, or has aggregates that no comparison can use.
    """
    if path.is_dir():
        return [run for file in _files_in(path) for run in read_tool_runs(file)]
    try:
        data = read_packed(path) if path.name.endswith(PACKED) else read_file(path)
    except OSError as error:
        raise UsageError(f"{path}: the file cannot be read: {error.strerror}. Name another file.") from error
    if held_bytes(data) > JSON_LIMIT_BYTES:
        raise UsageError(f"{path}: its values would take more than {JSON_LIMIT_BYTES // MIB} MiB of memory. "
                         "Name a file of fewer requests.")
    documents = _documents(path, data)
    runs = []
    for number, document in enumerate(documents, start=1):
        origin = str(path) if len(documents) == 1 else f"{path}, line {number}"
        tool = _tool_of(document, origin)
        try:
            runs += [_aiperf_run(documents, path)] if tool == AIPERF else list(_runs_of(tool, document, origin))
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            place = path if tool == AIPERF else origin
            raise UsageError(f"{place}: this looks like a result of {tool}, and cannot be read as one: "
                             f"{type(error).__name__} {echo(str(error))}. Repeat the benchmark.") from error
        if tool == AIPERF:  # each line is a request
            break
    return runs


def _files_in(folder: Path) -> list[Path]:
    """The result files of a folder; of AIPerf's folders of artifacts the files of requests."""
    of_aiperf = [*folder.glob(AIPERF_REQUESTS), *folder.glob(f"*/{AIPERF_REQUESTS}")]
    return sorted(of_aiperf or (each for each in folder.iterdir() if each.name.endswith(SUFFIXES)))


def _documents(path: Path, data: bytes) -> list[Any]:
    try:
        text = data.decode(json.detect_encoding(data))
        try:
            whole = _loaded(text)
            return whole if whole and isinstance(whole, list) else [whole]
        except json.JSONDecodeError as error:
            lines, documents = text.split("\n"), []
            for number, line in enumerate(lines, start=1):
                try:
                    documents += [_loaded(line)] if line.strip() else []
                except json.JSONDecodeError as of_line:  # of the whole text, unless the lines before are JSON
                    raise ValueError(f"line {number}: {of_line}" if documents else error) from of_line
            return documents
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: this is no JSON: {error}. Name a result file of {VLLM}, {SGLANG}, {AIPERF} or "
                         f"{GUIDELLM}.") from error


def _loaded(text: str) -> Any:  # noqa: ANN401
    return json.loads(text, object_pairs_hook=unique)


def _tool_of(document: Any, origin: str) -> str:  # noqa: ANN401
    """The tool that wrote a JSON object.

    Raises:
        UsageError: no known tool, or a file whose values cannot be compared.
    """
    keys = set(document) if isinstance(document, dict) else set()
    if {"endpoint_type", "num_prompts", "request_throughput"} <= keys:
        return VLLM_RUST if "T" in str(document.get("date")) else VLLM
    if {"dataset_name", "total_output_tokens_retokenized"} <= keys:
        return SGLANG
    if "benchmarks" in keys:
        return GUIDELLM
    if {"metadata", "metrics"} <= keys:
        return AIPERF
    what = next((text for names, text in REFUSED if names <= keys), "no result file that llmperf knows. Name one of "
                f"{VLLM}, {SGLANG}, {AIPERF} or {GUIDELLM}")
    raise UsageError(f"{origin}: this is {what}.")


def _runs_of(tool: str, document: Any, origin: str) -> Iterator[ToolRun]:  # noqa: ANN401
    if tool == GUIDELLM:
        if not document["benchmarks"]:
            raise UsageError(f"{origin}: the file has no benchmark. Repeat the benchmark.")
        for number, benchmark in enumerate(document["benchmarks"], start=1):
            several = len(document["benchmarks"]) > 1
            yield _guidellm_run(benchmark, f"{origin}, benchmark {number}" if several else origin)
        return
    completed, sent = document["completed"], document.get("num_prompts")
    names = ("model_id", "backend", "dataset_name", "num_prompts", "request_rate", "burstiness", "max_concurrency",
             "random_input_len", "random_output_len", "ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")
    load = {name: on_one_line(str(document[name])) for name in names if document.get(name) is not None}
    load.setdefault("num_prompts", str(len(document["errors"]) if "errors" in document else completed))
    rates = {"output_throughput": _number(document["output_throughput"])}
    made_at = str(document.get("date", ""))
    if document.get("ttfts"):
        records = [_record(*each) for each in zip(
            document["ttfts"], document["itls"], document["input_lens"], document["output_lens"], document["errors"],
            strict=True)]
        yield _detailed(origin, tool, load, records, rates, made_at=made_at)
        return
    if not (sent or completed):
        raise UsageError(f"{origin}: the benchmark has no requests. Repeat the benchmark.")
    failed = document.get("failed", (sent or completed) - completed)
    if failed or not completed:
        raise UsageError(f"{origin}: {failed or sent} of {sent} requests failed, and the file has aggregates alone, "
                         "which leave failed requests out. Repeat the benchmark with --save-detailed.")
    values = {f"{ours}_{stat}": _number(document[key]) for ours, names in LATENCIES.items()
              for stat, word in STATISTICS.items() for name in names if (key := f"{word}_{name}_ms") in document}
    tokens = tuple(document[f"total_{name}_tokens"] / completed for name in ("input", "output"))
    yield ToolRun(origin, tool, load, (tokens[0], tokens[1]), (), made_at, False,
                  Run.of_values(0, 0, {**values, **rates, "error_rate": 0.0}))


def _guidellm_run(benchmark: Mapping[str, Any], origin: str) -> ToolRun:
    requests = benchmark["requests"]
    served, errored = requests.get("successful") or [], requests.get("errored") or []
    if not served and not errored:
        raise UsageError(f"{origin}: GuideLLM's aggregates alone: the benchmark has no requests. Write the file with "
                         "--output kind=json.")
    records = [_record(request["time_to_first_token_ms"] / 1e3,
                       [(request["request_latency"] * 1e3 - request["time_to_first_token_ms"]) / 1e3],
                       request["prompt_tokens"], request["output_tokens"], "") for request in served]
    records += [_record(0.0, [], request.get("prompt_tokens"), 0, "errored") for request in errored]
    load = {"strategy": _load_text(benchmark["config"]["strategy"]), "num_prompts": str(len(records))}
    spans = [(request["request_start_time"], request["request_end_time"]) for request in served]
    return _detailed(origin, GUIDELLM, load, records, _rates(records, spans),
                     made_at=str(benchmark["start_time"]), gaps=False)


def _aiperf_run(documents: Sequence[Mapping[str, Any]], path: Path) -> ToolRun:
    def value(request: Mapping[str, Any], *names: str) -> Any:  # noqa: ANN401
        return next(request["metrics"][name]["value"] for name in names if name in request["metrics"])

    requests = [each for each in documents if each["metadata"].get("benchmark_phase", "profiling") == "profiling"]
    records = [
        _record(0.0, [], None, 0, "error") if request.get("error") else
        _record(value(request, "time_to_first_token") / 1e3,
                [gap / 1e3 for gap in value(request, "inter_chunk_latency")],
                value(request, "usage_prompt_tokens", "input_sequence_length"),
                value(request, "usage_completion_tokens", "output_sequence_length"), "")
        for request in requests
    ]
    spans = [(request["metadata"]["request_start_ns"] / 1e9, request["metadata"]["request_end_ns"] / 1e9)
             for request in requests]
    load, summary = {"num_prompts": str(len(records))}, path.with_name(AIPERF_SUMMARY)
    if summary.is_file():
        (document,) = _documents(summary, read_file(summary))
        asked = document["input_config"]
        load |= {name: "; ".join(_load_text(each) for each in asked[name]) for name in ("datasets", "phases")}
        load |= {"model": str(asked["models"]["items"][0]["name"]), "endpoint": str(asked["endpoint"]["type"])}
    return _detailed(str(path), AIPERF, load, records, _rates(records, spans),
                     made_at=str(min(began for began, _ in spans)))


def _rates(records: Sequence[RequestRecord], spans_s: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Output tokens per second, from the first send to the last end; none if no request was served."""
    if not spans_s:
        return {}
    duration_s = max(ended for _, ended in spans_s) - min(began for began, _ in spans_s)
    return {"output_throughput": sum(record.output_tokens or 0 for record in records) / duration_s}


def _load_text(values: Mapping[str, Any]) -> str:
    """The numbers and texts of a part of a tool's settings, also of the parts within."""
    within = [_load_text(value) for value in values.values() if isinstance(value, dict)]
    plain = [f"{name} {value}" for name, value in sorted(values.items())
             if isinstance(value, str | int | float) and not isinstance(value, bool) and name != "worker_count"]
    return ", ".join([*plain, *filter(None, within)])


def _record(ttft_s: float, gaps_s: Sequence[float], prompt: int | None, output: int, error: str) -> RequestRecord:
    """A request by its times since its send. The index is set later."""
    times_s = [] if error else [_number(ttft_s), *map(_number, gaps_s)]
    arrivals = tuple(round(at * 1e9) for at in accumulate(times_s))
    return RequestRecord(0, 0, 0, arrivals[-1] if arrivals else 0, Outcome.UNSUCCESSFUL_END if error else Outcome.OK,
                         detail=str(error) or None, arrivals_ns=arrivals, prompt_tokens=prompt,
                         output_tokens=None if error else output)


def _detailed(
    origin: str, tool: str, load: Mapping[str, str], records: Sequence[RequestRecord], rates: Mapping[str, float], *,
    made_at: str, gaps: bool = True,
) -> ToolRun:
    """A repeat with the times of its requests.

    Args:
        gaps: whether the file has every gap between chunks.
    """
    metrics = measure([replace(record, index=index) for index, record in enumerate(records)])
    families = tuple(name for name in LATENCIES if gaps or name != "itl")
    names = [f"{family}_{stat}" for family in families for stat in STATISTICS]
    judged = {name: value for name, value in statistics_with_failures(metrics).items() if name in names}
    values = {name: metrics.value(name) for name in [*names, "error_rate"]} | dict(rates)
    served = [record for record in records if record.ok]
    prompts = tuple(record.prompt_tokens or 0 for record in records)
    return ToolRun(origin, tool, load, (_mean(prompts), _mean([record.output_tokens or 0 for record in served])),
                   prompts, made_at, True, Run.of_values(0, 0, values, judged))


def _number(value: float) -> float:
    """A time or a rate.

    Raises:
        ValueError: the value is negative, infinite or NaN.
    """
    if not 0 <= float(value) < inf:
        raise ValueError(f"{value} is no time and no rate")
    return float(value)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
