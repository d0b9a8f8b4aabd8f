"""`perf.refuses` on the emulator: an engine that must refuse to start."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.emulated

SUITE = """
from pytest_llmperf import by_kind, closed, random_tokens, vllm

@by_kind(h200={{}})
def test_it(case, perf):
    {call}
"""
REFUSED = 'perf.refuses(vllm("llama-3.1-8b", max_model_len=30_576, num_gpu_blocks_override=71), "max_model_len")'


@pytest.fixture
def emulate(run):
    return lambda call, *args: run(SUITE.format(call=call), "--emulate", "h200", *args)


def stored_checks(pytester):
    (run_file,) = Path(pytester.path, ".llmperf/runs").glob("*/tests/*.json")
    return json.loads(run_file.read_text())["checks"]


def test_refused_length_passes_and_quotes_the_engine(emulate, pytester):
    result, _ = emulate(REFUSED, "-rA", "--junitxml=junit.xml")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*refuses max_model_len*PASS*exit code 1*“ValueError: To serve at least one request*"])
    result.stdout.fnmatch_lines(["*predicted before the start, not judged: one sequence of 30,576 tokens needs 3.73*"])
    (check,) = stored_checks(pytester)
    assert (check["verdict"], check["facts"]["ending"]) == ("PASS", "exit code 1")
    assert "decreasing `max_model_len`" in check["facts"]["log_lines"][0]
    case = next(ElementTree.parse(Path(pytester.path, "junit.xml")).iter("testcase"))
    assert {p.get("name"): p.get("value") for p in case.iter("property")}["llmperf.verdict"] == "PASS"


def test_planted_shorter_length_makes_the_refusal_a_fail(emulate, pytester):
    result, _ = emulate(REFUSED, "--plant-flag", "vllm:max-model-len=1024")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*refuses max_model_len: the engine started, and the test expects*"])
    assert [check["cause"] for check in stored_checks(pytester)] == ["engine_started"]


def test_engine_that_ends_for_another_reason_is_an_error(emulate):
    result, _ = emulate(REFUSED.replace('"max_model_len")', '"tensor_parallel_size")'))
    assert result.ret == 10
    result.stdout.fnmatch_lines(["*none of its error messages names tensor_parallel_size. Its log says: “ValueError*"])


def test_measurement_follows_a_refusal_on_another_server(emulate):
    run = ('run = perf.measure(vllm("llama-3.1-8b", max_model_len=4096), '
           'random_tokens(input=64, output=8, arrivals=closed(1), requests=4), runs=1)')
    result, _ = emulate(f'{REFUSED}\n    {run}\n    perf.check(run, "error_rate == 0")', "-rA")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*refuses max_model_len*PASS*", "*error_rate*PASS*"])


@pytest.mark.parametrize(("call", "message"), [
    ('perf.refuses(endpoint("http://127.0.0.1:9", model="m"), "max_model_len")', "*hand over a spec such as vllm*"),
    ('perf.refuses("llama-3.1-8b", "max_model_len")', "*hand over a spec such as vllm*"),
    ('perf.refuses(vllm("llama-3.1-8b"), "tp")', "*name the flag that the engine refuses*"),
    ('perf.refuses(vllm("llama-3.1-8b"), None)', "*name the flag that the engine refuses*"),
    ('perf.refuses(vllm("llama-3.1-8b", max_model_length=8), "max_model_len")', "*max_model_length*max_model_len*"),
])
def test_invalid_refusal_is_a_usage_error_before_a_start(emulate, pytester, call, message):
    result, _ = emulate(f"from pytest_llmperf import endpoint\n    {call}")
    assert result.ret == 1
    result.stdout.fnmatch_lines([message])
    assert not list(Path(pytester.path).glob(".llmperf/runs/*/servers/*"))
