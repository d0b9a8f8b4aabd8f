"""Cost on the emulator, energy with a fake NVML, and what is refused before a server starts."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

SUITE = """
from pytest_llmperf import by_kind, closed, random_tokens, vllm

LOAD = random_tokens(input=100, output=20, arrivals=closed(4), requests=40)

@by_kind(h200={{}})
def test_it(case, perf):
    engine = vllm("llama-3.1-8b", max_model_len=8192)
    {body}
"""
MEASURED = 'run = perf.measure(engine, LOAD)\n    perf.check(run, "error_rate == 0", {slo!r})'
COST = MEASURED.format(slo="cost_per_million_tokens <= 1 USD")
PRICE = ("--llmperf-set", "gpu_hour_price=2.50 USD 2026-11-01")
EXACT = ("--emulate-noise", "none")

pytestmark = pytest.mark.emulated


@pytest.fixture
def emulate(run):
    return lambda body, *args: run(SUITE.format(body=body), "--emulate", "h200", *args)


def stored_test(pytester):
    newest = max(Path(pytester.path, ".llmperf/runs").glob("*/tests/*.json"), key=lambda path: path.stat().st_mtime_ns)
    return json.loads(newest.read_text())


def test_cost_is_judged_stored_and_exported_at_the_stated_price(emulate, pytester):
    result, _ = emulate(COST, *PRICE, "-rA", "--junitxml=junit.xml")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*cost_per_million_tokens*PASS*at 2.5 USD per GPU hour of 2026-11-01*"])
    (measured,) = stored_test(pytester)["measurements"]
    assert measured["conditions"]["gpu_hour_price"] == "2.5 USD 2026-11-01"
    for run in measured["runs"]:
        metrics = run["metrics"]
        assert (run["counters"]["gpus"], run["counters"]["gpu_hour_price"]) == (1, 2.5)
        tokens = metrics["output_throughput"] * metrics["duration_s"]
        assert metrics["cost_per_million_tokens"] == pytest.approx(2.5 * metrics["duration_s"] / 3600 / tokens * 1e6)
        assert metrics["joules_per_token"] is None
    case = next(ElementTree.parse(Path(pytester.path, "junit.xml")).iter("testcase"))
    names = {p.get("name") for p in case.iter("property")}
    assert "llmperf.metric.cost_per_million_tokens" in names


def test_cost_above_the_limit_fails(emulate):
    result, _ = emulate(MEASURED.format(slo="cost_per_million_tokens <= 0.001 USD"), *PRICE)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*cost_per_million_tokens*FAIL*"])


def test_claim_about_cost_compares_two_sides(emulate):
    claim = ('perf.claim(engine, engine.with_flags(enforce_eager=True), LOAD, '
             '"cost_per_million_tokens(b) / cost_per_million_tokens(a) >= 1.05", '
             'mechanism=["cost_per_million_tokens(a) <= 10 USD"])')
    result, _ = emulate(claim, *PRICE, "-rA")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*cost_per_million_tokens(b) / cost_per_million_tokens(a)*PASS*"])


@pytest.mark.parametrize(("body", "price", "message"), [
    (COST, (), "*a cost needs the price of a GPU hour, and none is stated*"),
    (COST, ("--llmperf-set=gpu_hour_price=2 EUR 2026-11-01",), "*the limit is in USD, and the GPU hour costs 2 EUR*"),
    ('perf.measure(engine, LOAD, until="cost_per_million_tokens <= 1 EUR")', PRICE, "*the limit is in EUR*"),
    ('perf.max_rate(engine, LOAD, slo="cost_per_million_tokens <= 1 EUR")', PRICE, "*the limit is in EUR*"),
    ('perf.claim(engine, engine.with_flags(enforce_eager=True), LOAD, '
     '"cost_per_million_tokens(b) / cost_per_million_tokens(a) >= 1.05")', (), "*none is stated*"),
    ('perf.claim(engine, engine.with_flags(enforce_eager=True), LOAD, '
     '"joules_per_token(b) / joules_per_token(a) >= 1.05")', (), "*an emulated GPU draws no power*skip it where*"),
])
def test_unusable_cost_or_energy_is_a_usage_error(emulate, body, price, message):
    result, _ = emulate(body, *price)
    assert result.ret == 1
    result.stdout.fnmatch_lines([message])
    result.stdout.no_fnmatch_line("*FAIL  *")


@pytest.mark.parametrize(("price", "message"), [
    ("2.50", "*lacks a currency and a date*"), ("0 USD 2026-11-01", "*must cost more than 0*"),
    ("many USD 2026-11-01", "*'many' is no number*"),
])
def test_invalid_price_ends_the_session_before_any_test(emulate, pytester, price, message):
    result, _ = emulate(COST, f"--llmperf-set=gpu_hour_price={price}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])
    assert not Path(pytester.path, ".llmperf").exists()


def test_energy_of_an_emulated_gpu_is_reported_as_not_seen(emulate):
    result, _ = emulate(MEASURED.format(slo="joules_per_token <= 0.5 J"), "-rA")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*joules_per_token*REPORTED*", "*not seen: an emulated GPU draws no power*"])


def test_baseline_of_a_cost_is_incomparable_at_another_price(emulate, pytester):
    body = f'{COST}\n    perf.compare_with_baseline(run, primaries=["cost_per_million_tokens", "itl_p50"])'
    assert emulate(body, *PRICE, *EXACT, "--update-baselines-new")[0].ret == 0
    baseline = Path(pytester.path, "baselines/emulated-h200/it/test_it.json")
    stored = json.loads(baseline.read_text())
    text = json.dumps(stored)
    assert "cost_per_million_tokens.1 at 2.5 USD 2026-11-01" in text
    assert "joules_per_token" not in text
    same, _ = emulate(body, *PRICE, *EXACT)
    assert same.ret == 0
    other, _ = emulate(body, "--llmperf-set=gpu_hour_price=2.60 USD 2026-12-01", "--llmperf-missing-baseline", "fail")
    assert other.ret == 1
    other.stdout.fnmatch_lines(["*formula of cost_per_million_tokens: *2.5 USD 2026-11-01 stored*2.6 USD 2026-12-01*"])


def test_baseline_without_the_cost_is_compared_at_another_price(emulate, pytester):
    body = f"{COST}\n    perf.compare_with_baseline(run)"
    assert emulate(body, *PRICE, *EXACT, "--update-baselines-new")[0].ret == 0
    baseline = Path(pytester.path, "baselines/emulated-h200/it/test_it.json")
    assert "cost_per_million_tokens" not in baseline.read_text()
    other, _ = emulate(body, "--llmperf-set", "gpu_hour_price=9 USD 2026-12-01", *EXACT,
                       "--llmperf-missing-baseline", "fail")
    assert other.ret == 1  # the cost alone is too large
    other.stdout.fnmatch_lines(["*cost_per_million_tokens*FAIL*", "*itl_p50 *PASS*"])
