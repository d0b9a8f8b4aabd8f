"""Servers that a test announces by `perf.together`: which of them start at the same time, and in which order."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.emulated

SUITE = """
from pytest_llmperf import closed, random_tokens, vllm

def spec(seats):
    return vllm("llama-3.1-8b", max_model_len=8192, max_num_seqs=seats)

TRAFFIC = random_tokens(input=64, output=8, arrivals=closed(4), requests=8)

"""


@pytest.fixture
def starts(run, pytester):
    """Runs a suite; gives the result and test → measurements as (seats, treatment, start ids)."""

    def starts(text, *args, kind="h200"):
        result, _ = run(SUITE + text, "--emulate", kind, *args)
        tests = {}
        for path in Path(pytester.path).glob(".llmperf/runs/*/tests/*.json"):
            content = json.loads(path.read_text())
            tests[content["test"].split("::")[1]] = [
                (json.loads(each["conditions"]["flags"])["max_num_seqs"], each["conditions"].get("treatment"),
                 sorted({run["start_id"] for run in each["runs"]}))
                for each in content["measurements"]
            ]
        return result, tests

    return starts


@pytest.fixture
def reasons(pytester):
    """Reads why each server of the newest run ran alone."""

    def reasons():
        newest = max(Path(pytester.path).glob(".llmperf/runs/*/tests/*.json"), key=lambda path: path.stat().st_mtime_ns)
        return [each["alone"] for each in json.loads(newest.read_text())["measurements"]]

    return reasons


THREE = """
def test_three(perf):
    for each in perf.together(spec(4), spec(8), spec(16)):
        perf.measure(each, TRAFFIC, runs=2)
"""


def test_announced_servers_that_fit_start_together(starts):
    result, tests = starts(THREE)
    assert tests["test_three"] == [(seats, "2 idle servers beside it", [start])
                                   for seats, start in ((4, 1), (8, 2), (16, 3))]
    result.stdout.fnmatch_lines(["*3 servers share the GPU; KV caches of 24 GiB*"])


def test_announced_servers_are_split_into_groups_that_fit(starts, reasons):
    """Two servers of 19 GiB each leave room on 80 GiB for their KV caches, three do not."""
    result, tests = starts(THREE, kind="h100")
    assert tests["test_three"] == [(4, "1 idle server beside it", [1]), (8, "1 idle server beside it", [2]),
                                   (16, None, [3])]
    result.stdout.fnmatch_lines(["*3 servers do not run at the same time: 3 servers need 57 GiB*"])
    first, second, third = reasons()
    assert (first, second) == ("", "")
    assert third.startswith("3 servers need 57 GiB")


@pytest.mark.parametrize(("call", "reason"), [
    ("perf.compare_with_baseline(run)", "the test compares with a stored baseline"),
    ("", "resident_servers is"),
], ids=["baseline", "setting"])
def test_note_names_reason_for_announced_servers_that_run_alone(starts, reasons, call, reason):
    text = f"""
def test_two(perf):
    for each in perf.together(spec(4), spec(8)):
        run = perf.measure(each, TRAFFIC, runs=1)
    {call}
"""
    result, tests = starts(text, *(() if call else ("--llmperf-set", "resident_servers=none")))
    assert [(treatment, start) for _, treatment, start in tests["test_two"]] == [(None, [1]), (None, [2])]
    result.stdout.fnmatch_lines([f"*2 servers do not run at the same time: {reason}*"])
    assert all(text.startswith(reason) for text in reasons())


def test_server_that_runs_alone_is_measured_first_and_needs_no_second_start(starts, reasons):
    _, tests = starts("""
def test_first(perf):
    perf.measure(spec(8), TRAFFIC, runs=1)

def test_second(perf):
    for each in perf.together(spec(4), spec(8)):
        perf.measure(each, TRAFFIC, runs=1)
""")
    assert tests["test_second"] == [(8, None, [1]), (4, None, [2])]
    assert reasons() == ["the server of one of the two specs runs already"] * 2


def test_claim_of_two_running_announced_servers_needs_no_start(starts):
    _, tests = starts(THREE + """
def test_two(perf):
    perf.claim(*perf.together(spec(16), spec(8)), TRAFFIC, "ttft_p50(b) / ttft_p50(a) >= 0.1", allow={"tpot_mean": 9.0})
""")
    assert tests["test_two"] == [(16, "2 idle servers beside it", [3]), (8, "2 idle servers beside it", [2])]


def test_measurement_that_may_preempt_has_a_server_alone(starts):
    _, tests = starts("""
def test_two(perf):
    small, large = perf.together(spec(4), spec(8))
    perf.measure(small, TRAFFIC, runs=1)
    perf.measure(large, TRAFFIC, runs=1, may_preempt=True)
""")
    assert tests["test_two"] == [(4, "1 idle server beside it", [1]), (8, None, [3])]


def test_each_spec_is_measured_with_all_loads_and_sides_have_given_names(starts):
    """The server of 8 seats runs, so it comes first; a result keeps the order and the names of the test."""
    result, tests = starts("""
def test_first(perf):
    perf.measure(spec(8), TRAFFIC, runs=1)

def test_second(perf):
    loads = {"one": TRAFFIC, "two": random_tokens(input=64, output=16, arrivals=closed(4), requests=8)}
    table = perf.measure_each({"small": spec(4), "large": spec(8)}, loads, runs=2)
    assert [(load, list(sides)) for load, sides in table.items()] == [(load, ["small", "large"]) for load in loads]
    assert all(run.workload == str(loads[load]) for load, sides in table.items() for run in sides.values())
    assert perf.measure_each({"small": spec(4), "large": spec(8)}, TRAFFIC, runs=1).keys() == {"small", "large"}
    ratios = [perf.compare("tpot_mean(small) / tpot_mean(large)", **sides)[0] for sides in table.values()]
    perf.check_smaller("one < two", *ratios)
""")
    assert [(seats, start) for seats, _, start in tests["test_second"][:4]] == [(8, [1]), (8, [1]), (4, [2]), (4, [2])]
    result.stdout.fnmatch_lines(["*one < two*against*a factor of*"])


@pytest.mark.parametrize(("line", "error"), [
    ('perf.check(run, "kv_blocks >= 1")', "*kv_blocks is of a server that shares the GPU*starts alone*"),
    ('perf.compare("startup_s(a) / startup_s(b)", a=run, b=run)', "*startup_s is of a server that shares the GPU*"),
    ("perf.together(spec(4))", "*perf.together(*: announce two different specs or more*"),
    ("perf.together(spec(4), spec(4))", "*perf.together(*: announce two different specs or more*"),
    ('perf.together(spec(4), "vllm")', "*perf.together('vllm', …): announce specs such as vllm(MODEL)*"),
    ("perf.measure_each([spec(4), spec(8)], TRAFFIC)", "*perf.measure_each(*: name the specs*"),
    ('perf.measure_each({"small": spec(4), "large": spec(8)}, {})', "*perf.measure_each({}): name the specs*"),
    ('perf.check_smaller("gain", 1, 2)', "*perf.check_smaller(…, smaller=1): give it a result of perf.compare*"),
], ids=["check", "compare", "one", "twice", "no spec", "no names", "no loads", "no ratio"])
def test_invalid_use_of_announced_servers_is_refused(starts, line, error):
    result, _ = starts(f"""
def test_two(perf):
    for each in perf.together(spec(4), spec(8)):
        run = perf.measure(each, TRAFFIC, runs=2)
    {line}
""")
    assert result.ret == 1
    result.stdout.fnmatch_lines([error])
