"""What no engine could do is found before a server starts, under every option."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.emulated

HEAD = """
from pytest_llmperf import closed, random_tokens, vllm
SPEC = vllm("llama-3.1-8b", max_model_len=4096)
WORK = random_tokens(input=64, output=8, arrivals=closed(2), requests=12)
"""
MISTYPED = HEAD + """
def test_it(perf):
    perf.claim(SPEC, SPEC.with_flags(max_num_batched_token=512), WORK, "ttft_p50(b) / ttft_p50(a) >= 1.1")
"""
TOO_LONG = HEAD + """
def test_it(perf):
    perf.measure(ENGINE, random_tokens(input=4000, output=97, arrivals=closed(2), requests=12))
"""
CLOCKS = pytest.mark.parametrize("clock", ["virtual", "real"])


def started(pytester):
    return list(Path(pytester.path).glob(".llmperf/runs/*/servers/*"))


@CLOCKS
def test_mistyped_flag_of_either_side_is_usage_before_the_first_start(run, pytester, clock):
    result, _ = run(MISTYPED, "--emulate", "h200", "--emulate-clock", clock)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*USAGE*has no flag --max-num-batched-token. Did you mean max_num_batched_tokens[?]*"])
    assert started(pytester) == []


def test_mistyped_planted_flag_is_usage_before_the_first_start(run, pytester):
    text = HEAD + "def test_it(perf): perf.check(perf.measure(SPEC, WORK), 'error_rate == 0')"
    result, _ = run(text, "--emulate", "h200", "--plant-flag", "vllm:enforce-eagr")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*has no flag --enforce-eagr. Did you mean enforce_eager[?]*"])
    assert started(pytester) == []


@pytest.mark.parametrize(("decorator", "measured"), [
    ("", "SPEC"), ("@pytest.mark.engine(SPEC)\n", "engine"),
], ids=["perf", "engine"])
def test_mistyped_metric_of_a_check_is_usage_before_a_start(run, pytester, decorator, measured):
    fixtures = "perf" if measured == "SPEC" else "engine, perf"
    text = (HEAD + f"import pytest\n{decorator}def test_it({fixtures}):\n"
            f"    perf.check(perf.measure({measured}, WORK), 'error_rate == 0', 'ttft_p9 <= 60ms')\n")
    result, _ = run(text, "--emulate", "h200")
    result.stdout.fnmatch_lines(["*USAGE*'ttft_p9'*did you mean*"])
    assert started(pytester) == []


@pytest.mark.parametrize(("engine", "limit"), [
    ("SPEC", "max_model_len=4096"), ('vllm("qwen3-8b", max_model_len=4096)', "max_model_len=4096"),
])
def test_request_longer_than_the_context_is_usage_before_a_start(run, pytester, engine, limit):
    result, _ = run(TOO_LONG.replace("ENGINE", engine), "--emulate", "h200")
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"*USAGE*4000 tokens in its prompt and asks for 97, 4097 in all, and {limit}*"])
    assert started(pytester) == []


def test_request_that_just_fits_is_sent(run):
    result, _ = run(TOO_LONG.replace("ENGINE", "SPEC").replace("97", "96"), "--emulate", "h200")
    assert result.ret == 0


def test_request_longer_than_the_model_takes_is_usage_before_a_start(run, pytester):
    text = TOO_LONG.replace("ENGINE", 'vllm("tiny")').replace("input=4000", "input=32700")
    result, _ = run(text, "--emulate", "h200")
    result.stdout.fnmatch_lines(["*32797 in all, and 32768 tokens are the most that tiny takes*"])
    assert started(pytester) == []


def test_token_beyond_the_vocabulary_is_usage_before_a_start(run, pytester):
    model = Path(__file__).parents[2] / "suites" / "models" / "sums"
    result, _ = run(TOO_LONG.replace("ENGINE", f'vllm("{model}")').replace("input=4000", "input=40"))
    result.stdout.fnmatch_lines(["*USAGE*request 0 has the token *, and the vocabulary of *sums has 384 tokens*"])
    assert started(pytester) == []
