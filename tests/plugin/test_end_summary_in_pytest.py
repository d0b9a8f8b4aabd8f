"""The summary where users see it, plain and under xdist."""

import pytest

TEXT = """
def test_good(perf): give(perf, "PASS")
def test_bad(perf): give(perf, "PASS", "FAIL")
def test_missing(perf): give(perf, "NO_BASELINE")
def test_plain(): assert True
def test_dead(perf):
    from pytest_llmperf.errors import Evidence, ServerDied
    raise ServerDied("It died: signal 9.", Evidence("vllm serve", "signal 9", 3.0, ("words",), "/runs/server.log"))
"""
SEEN = [
    "*= llmperf: 1 ERROR, 1 FAIL, 1 NO_BASELINE, 1 PASS =*",
    "ERROR        test_dead     It died: signal 9.",
    "FAIL         test_bad      2 ms  ttft_p99 <= FAIL",
    "NO_BASELINE  test_missing  2 ms  ttft_p99 <= NO_BASELINE",
    "PASS         test_good     2 ms  ttft_p99 <= PASS",
    "next:",
    "  less /runs/server.log",
    "  pytest test_it.py::test_missing --update-baselines-new",
]


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["plain", "xdist"])
def test_summary_shows_verdicts_values_and_next_commands(run, options):
    result, _ = run(TEXT, *options)
    result.stdout.fnmatch_lines(SEEN)
    assert "test_plain  " not in result.stdout.str()


def test_next_command_repeats_emulate_option(run):
    result, _ = run(TEXT, "--emulate", "h200")
    result.stdout.fnmatch_lines(["  pytest test_it.py::test_missing --emulate h200 --update-baselines-new"])


def test_suggested_command_repeats_relative_path_and_engine_options(run, pytester, monkeypatch):
    monkeypatch.chdir(pytester.mkdir("sub"))
    again = ["--emulate-clock", "real", "--emulate-noise", "none", "--llmperf-engine=vllm=/x y", "--llmperf-runs=../r"]
    result, _ = run(TEXT, f"--rootdir={pytester.path}", "../test_it.py", "--emulate", "h200", *again)
    result.stdout.fnmatch_lines([
        "  pytest ../test_it.py::test_missing --emulate h200 --emulate-clock real --emulate-noise none "
        f"'--llmperf-engine=vllm=/x y' --llmperf-runs=../r --rootdir={pytester.path} --update-baselines-new"
    ])


@pytest.mark.emulated
@pytest.mark.parametrize("options", [(), ("--update-baselines-new",)], ids=["first", "update"])
def test_open_slo_prevents_update_advice_for_missing_baseline(run, options):
    text = """
from pytest_llmperf import poisson, random_tokens, vllm

def test_it(perf):
    work = random_tokens(input=100, output=8, arrivals=poisson(8), requests=20)
    run = perf.measure(vllm("llama-3.1-8b", max_model_len=4096), work)
    perf.check(run, "ttft_p99 <= 1s")
    perf.compare_with_baseline(run)
"""
    result, _ = run(text, "--emulate", "h200", *options)
    result.stdout.fnmatch_lines([
        "NO_BASELINE  test_it  baseline; INCONCLUSIVE: *  ttft_p99 <= 1s*", "next:",
        "  llmperf show .llmperf/runs/* test_it",
    ])
    result.stdout.no_fnmatch_line("  pytest *")


def test_no_performance_tests_no_summary(run):
    result, _ = run("def test_it(): assert True\n")
    assert "llmperf" not in result.stdout.str().partition("collected")[2]


def test_very_quiet_output_has_no_summary(run):
    result, _ = run(TEXT, "-qq")
    assert "next:" not in result.stdout.str()


MEASURED = """
from pytest_llmperf import poisson, random_tokens, vllm

def test_it(perf):
    work = random_tokens(input=100, output=8, arrivals=poisson(8), requests=20)
    run = perf.measure(vllm("llama-3.1-8b", max_model_len=4096), work)
    perf.check(run, "ttft_p50 <= 5s")
    perf.compare_with_baseline(run)
"""


@pytest.mark.emulated
def test_verbose_output_shows_metrics_with_interval_and_baseline(run):
    result, _ = run(MEASURED, "--emulate", "h200", "--update-baselines-new")
    assert result.ret == 0
    result.stdout.fnmatch_lines([
        "baselines: 1 created", "*llmperf: 1 STORED*", "STORED  test_it  baseline stored; the next run*", "next:",
        "  git add baselines",
    ])
    result.stdout.no_fnmatch_line("*NO_BASELINE*")
    result.stdout.no_fnmatch_line("  pytest *")
    result, _ = run(MEASURED, "--emulate", "h200", "--emulate-seed", "1", "-v")
    result.stdout.fnmatch_lines(["*vllm('llama-3.1-8b'*random_tokens(*", "  metric *90 % CI *baseline *change"])
    rows = {line.split()[0]: line for line in result.outlines if line.startswith("  ")}
    assert "–" in rows["ttft_p50"]
    assert rows["ttft_p50"].rstrip().endswith("%")
    assert {"itl_p99", "output_throughput", "prefix_cache_hit_rate"} <= set(rows)
