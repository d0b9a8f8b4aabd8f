"""`llmperf diff` on result files of other load generators, made from one real file of each."""

import gzip
import json
import re
from pathlib import Path

import pytest

from pytest_llmperf import Verdict
from pytest_llmperf.cli import main
from pytest_llmperf.errors import UsageError
from pytest_llmperf.report.release import Trend
from pytest_llmperf.report.tool_comparison import compare_tool_files
from pytest_llmperf.results.tool_files import is_tool_side, read_tool_runs

DATA = Path(__file__).parents[2] / "data" / "tool_results"
DETAILED = ["vllm_python_detailed.json", "vllm_rust_detailed.json", "sglang_detailed.jsonl"]
AGGREGATES = ["vllm_python.json", "vllm_rust.json", "sglang.jsonl"]
TIMES = ("ttft", "itl", "latency", "tpot", "inter_token", "inter_chunk", "time_to_first_token", "e2e")
NOISE = (1.0, 1.002, 0.998)


def slower(value, factor, name=""):
    """The document with each latency multiplied."""
    if isinstance(value, dict):
        return {key: slower(each, factor, key if key not in ("value",) else name) for key, each in value.items()}
    if isinstance(value, list):
        return [slower(each, factor, name) for each in value]
    return value * factor if isinstance(value, float) and any(time in name for time in TIMES) else value


def lines(name):
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


@pytest.fixture
def repeats(tmp_path):
    """Writes a folder of repeats of one real file, each slower by a factor."""

    def repeats(side, name, factors, **changes):
        folder = tmp_path / side
        for number, factor in enumerate(factors):
            place = folder / str(number) if name.startswith("aiperf") else folder
            place.mkdir(parents=True, exist_ok=True)
            texts = [json.dumps(slower(document, factor) | changes) for document in lines(name)]
            (place / (Path(name).name if name.startswith("aiperf") else f"{number}{Path(name).suffix}")).write_text(
                "\n".join(texts))
        return folder

    return repeats


@pytest.mark.parametrize("name", [*DETAILED, *AGGREGATES, "guidellm.json", "aiperf/profile_export.jsonl"])
@pytest.mark.parametrize(("factor", "trend"), [(1.0, Trend.STAYED), (1.3, Trend.WORSE), (0.7, Trend.BETTER)])
def test_slower_repeats_of_a_tool_are_worse_and_equal_repeats_stay(repeats, name, factor, trend):
    old, new = repeats("old", name, NOISE), repeats("new", name, [factor * each for each in NOISE])
    (compared,) = compare_tool_files([old], [new])
    assert compared.trend is trend


@pytest.mark.parametrize("name", DETAILED)
def test_metrics_computed_from_requests_equal_the_statistics_of_the_tool(name):
    (run,), (document,) = read_tool_runs(DATA / name), lines(name)
    for ours, theirs in (("ttft_mean", "mean_ttft_ms"), ("ttft_p50", "median_ttft_ms"), ("tpot_mean", "mean_tpot_ms"),
                         ("itl_p50", "median_itl_ms"), ("itl_p99", "p99_itl_ms"), ("tpot_p99", "p99_tpot_ms")):
        assert run.run.metrics.value(ours) == pytest.approx(document[theirs], rel=1e-4), ours  # SGLang's end differs


def test_metrics_of_aiperf_and_guidellm_follow_the_formulas_of_vllm():
    (aiperf,) = read_tool_runs(DATA / "aiperf/profile_export.jsonl")
    (guidellm,) = read_tool_runs(DATA / "guidellm.json")
    summary = json.loads((DATA / "aiperf/profile_export_aiperf.json").read_text())
    assert aiperf.run.metrics.value("ttft_p50") == pytest.approx(summary["time_to_first_token"]["p50"], rel=1e-6)
    assert aiperf.run.metrics.value("itl_mean") == pytest.approx(summary["inter_chunk_latency"]["avg"], rel=1e-6)
    requests = json.loads((DATA / "guidellm.json").read_text())["benchmarks"][0]["requests"]["successful"]
    gaps = [request["inter_token_latency_ms"] for request in requests]  # GuideLLM's word for TPOT
    assert guidellm.run.metrics.value("tpot_mean") == pytest.approx(sum(gaps) / len(gaps), rel=1e-2)
    assert guidellm.run.metrics.values.get("itl_p50") is None


def test_failed_request_counts_as_infinitely_slow_where_the_file_has_requests(tmp_path):
    (document,) = lines("vllm_python_detailed.json")
    document["errors"][0], document["ttfts"][0], document["itls"][0] = "HTTP 500", 0.0, []
    path = tmp_path / "failed.json"
    path.write_text(json.dumps(document))
    (run,) = read_tool_runs(path)
    assert run.run.metrics.value("error_rate") == pytest.approx(1 / 12)
    assert run.run.metrics.judged["ttft_mean"] is None  # infinite


@pytest.fixture
def compared_at(repeats):
    """The change of median ITL between four repeats a side that were made in a stated order."""

    def compared_at(times, factor, noise):
        folders = [
            [repeats(f"{side}-{date}", "vllm_python.json", [slow * each], date=date)
             for each, date in zip(noise, dates, strict=True)]
            for side, slow, dates in zip(("old", "new"), (1.0, factor), times, strict=True)
        ]
        (compared,) = compare_tool_files(*folders)
        return next(change for change in compared.changes if change.metric == "itl_p50")

    return compared_at


def test_repeats_made_in_turn_detect_smaller_changes_than_sides_made_one_after_the_other(compared_at):
    noise = (1.0, 1.001, 0.999, 1.0)
    assert compared_at(("1458", "2367"), 1.02, noise).verdict is Verdict.FAIL  # A B B A, A B B A
    assert compared_at(("1234", "5678"), 1.02, noise).verdict is Verdict.PASS  # within the margin between sessions


def test_undecided_comparison_states_what_it_detects_and_what_more_runs_add(compared_at):
    power = compared_at(("1458", "2367"), 1.01, (1.0, 1.02, 0.985, 1.01)).power
    now, then = re.fullmatch(
        r"smallest detectable change \+(.*) %; with \d+ more runs a side \+(.*) %", power).groups()
    assert float(then) < 0.9 * float(now)
    apart = compared_at(("1234", "5678"), 1.03, (1.0, 1.001, 0.999, 1.0)).power
    assert "more runs do not lower it, because two sessions differ by 0.6 %" in apart


REFUSED = {
    "two tools": (["vllm_python.json", "sglang.jsonl"], "is of sglang.bench_serving and"),
    "two clients": (["vllm_python.json", "vllm_rust.json"], "is of vllm bench serve (Rust client)"),
    "aggregates of one repeat": (["vllm_python.json", "vllm_python.json"], "one repeat, and the aggregates alone"),
    "aggregates of AIPerf": (["aiperf/profile_export_aiperf.json", "vllm_rust.json"], "Name profile_export.jsonl"),
    "odd number": (["vllm_rust.json"] * 3, "with the second half, and 3 cannot be halved."),
    "a run and a file": ([".", "vllm_rust.json"], "no result file of another load generator"),
}


@pytest.mark.parametrize(("sides", "expected"), REFUSED.values(), ids=REFUSED)
def test_files_that_cannot_be_compared_are_refused_by_name(tmp_path, monkeypatch, capsys, sides, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").mkdir()
    assert main(["diff", *(side if side == "." else str(DATA / side) for side in sides)]) == 2
    assert expected in capsys.readouterr().err


def serving(**changes):
    (document,) = lines("vllm_python_detailed.json")
    return json.dumps(document | changes)


DAMAGED = {
    "no JSON": ("{", "this is no JSON"),
    "unknown": ('{"a": 1}', "no result file that llmperf knows"),
    "latency": ('{"avg_latency": 1, "latencies": []}', "a result of vllm bench latency"),
    "throughput": ('{"elapsed_time": 1, "num_requests": 2}', "a result of vllm bench throughput"),
    "text for a time": (serving(ttfts=["soon"] * 12), "looks like a result of vllm bench serve, and cannot be read"),
    "negative time": (serving(ttfts=[-1.0] * 12), "-1.0 is no time and no rate"),
    "NaN as a time": (serving(itls=[[float("nan")]] * 12), "nan is no time and no rate"),
    "infinite time": (serving(itls=[[float("inf")]] * 12), "inf is no time and no rate"),
    "NaN as a rate": (serving(output_throughput=float("nan")), "nan is no time and no rate"),
    "a key twice": (serving()[:-1] + ', "ttfts": []}', "the key 'ttfts' stands twice in one object"),
    "lines of which the last is cut": (f"{serving()}\n{serving()}\n{serving()[:90]}", "no JSON: line 3: "),
    "cut text of several lines": (json.dumps(json.loads(serving()), indent=1)[:90], "no JSON: Expecting"),
    "list of lists": ("[[]]", "no result file that llmperf knows"),
    "empty list": ("[]", "no result file that llmperf knows"),
    "no requests": (serving(num_prompts=0, completed=0, ttfts=[]), "the benchmark has no requests"),
    "no benchmark": ('{"benchmarks": []}', "the file has no benchmark"),
}


@pytest.mark.parametrize(("text", "expected"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_file_is_refused_with_its_place_and_remedy(tmp_path, text, expected):
    path = tmp_path / "x.json"
    path.write_text(text)
    assert is_tool_side(path)
    with pytest.raises(UsageError, match=r"x\.json") as refused:
        read_tool_runs(path)
    assert expected in str(refused.value)


@pytest.mark.parametrize(("change", "expected"), [
    ({"max_concurrency": 8}, "different loads: max_concurrency 4 and 8"),
    ({"num_prompts": 24}, "different loads: num_prompts 12 and 24"),
    ({"total_input_tokens": 4000}, "different loads: prompts of"),
])
def test_different_loads_are_refused_with_the_fields_that_differ(repeats, change, expected):
    old = repeats("old", "vllm_python.json", NOISE)
    new = repeats("new", "vllm_python.json", NOISE, **change)
    with pytest.raises(UsageError) as refused:
        compare_tool_files([old], [new])
    assert expected in str(refused.value)


def test_failed_requests_without_details_are_refused(repeats):
    folder = repeats("old", "vllm_python.json", NOISE, failed=2, completed=10)
    with pytest.raises(UsageError, match="2 of 12 requests failed, and the file has aggregates alone"):
        read_tool_runs(folder)


@pytest.mark.parametrize(("name", "encoding"), [
    (name, encoding) for name in ("vllm_python_detailed.json", "sglang_detailed.jsonl")
    for encoding in ("utf-8-sig", "utf-16")
])
def test_file_of_another_encoding_or_with_windows_line_ends_reads_as_the_same_run(tmp_path, name, encoding):
    path = tmp_path / name
    path.write_bytes((DATA / name).read_text().replace("\n", "\r\n").encode(encoding))
    assert is_tool_side(path)
    read, expected = ([(run.tool, run.load, run.prompts, run.run.metrics.all()) for run in read_tool_runs(place)]
                      for place in (path, DATA / name))
    assert read == expected


@pytest.mark.parametrize(("name", "content"), [
    ("x.json.gz", gzip.compress(serving().encode())), ("x.jsonl.gz", gzip.compress(serving().encode())),
    ("x.json", f"[{serving()}]".encode()),
])
def test_packed_result_and_result_in_a_list_read_as_the_same_run(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    expected = read_tool_runs(DATA / "vllm_python_detailed.json")[0].run.metrics.all()
    assert is_tool_side(tmp_path / name)
    assert [read_tool_runs(place)[0].run.metrics.all() for place in (tmp_path / name, tmp_path)] == [expected] * 2


def test_packed_file_that_is_damaged_is_refused_by_name(tmp_path):
    path = tmp_path / "x.json.gz"
    for content in (b"no gzip", gzip.compress(serving().encode())[:-90]):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"x\.json\.gz: the file cannot be read"):
            read_tool_runs(path)


def test_result_without_a_date_is_read(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({name: value for name, value in json.loads(serving()).items() if name != "date"}))
    assert read_tool_runs(path)[0].made_at == ""


def test_control_characters_of_a_load_are_shown_as_escapes_on_one_line(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(serving(model_id="a\x1b[31m\n| b"))
    assert read_tool_runs(path)[0].load["model_id"] == r"a\x1b[31m | b"


def test_result_without_a_served_request_is_refused(repeats):
    folder = repeats("old", "vllm_python.json", NOISE, completed=0)
    with pytest.raises(UsageError, match="12 of 12 requests failed, and the file has aggregates alone"):
        read_tool_runs(folder)


def test_too_large_result_is_refused_as_a_result(tmp_path, capsys):
    path = tmp_path / "x.json"
    with path.open("w") as file:
        file.write('{"ttfts": [')
        file.truncate(65 * 2**20)
    assert main(["diff", str(path), str(DATA / "vllm_rust.json")]) == 2
    assert "x.json: the file cannot be read: it has more than 64 MiB" in capsys.readouterr().err


def test_power_of_undecided_comparison_is_in_the_comment(repeats, capsys):
    noise = (1.0, 1.04, 0.97)
    old, new = repeats("old", "vllm_python.json", noise), repeats("new", "vllm_python.json", [1.04 * f for f in noise])
    assert main(["comment", str(new), "--against", str(old)]) == 0
    assert "smallest detectable change" in capsys.readouterr().out


@pytest.mark.parametrize("count", [1, 2])
def test_less_than_three_repeats_a_side_decide_nothing_and_say_so(repeats, capsys, count):
    old = repeats("old", "vllm_python_detailed.json", NOISE[:count])
    new = repeats("new", "vllm_python_detailed.json", [2 * each for each in NOISE[:count]])
    assert main(["diff", str(old), str(new)]) == 0
    output = capsys.readouterr().out
    assert output.startswith("UNKNOWN")
    assert f"itl_p50: undecided below 3 runs a side, and there are {count}. Make more runs" in output


def test_show_of_a_result_file_names_the_command_that_compares_it(capsys):
    assert main(["show", str(DATA / "vllm_rust.json")]) == 2
    assert "llmperf diff OLD.json NEW.json" in capsys.readouterr().err
