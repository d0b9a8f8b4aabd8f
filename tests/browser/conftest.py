"""A real browser on reports made of hand-written runs: headless Chromium of the distribution, driven by Playwright."""

import os
import shutil

import pytest

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.metrics import measure
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.report.html import write_report
from pytest_llmperf.results.check import Stated
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.results.writer import write_test
from pytest_llmperf.slo.model import Comparison
from pytest_llmperf.stats.interval import Interval
from pytest_llmperf.testing.records import make_record

NAMES = ("chromium", "chromium-browser", "google-chrome")
HUNG_MS = 120_000
INSTALL = "no Chromium is installed: sh scripts/install_chromium.sh"


@pytest.fixture(scope="session")
def chromium():
    path = next((executable for name in NAMES if (executable := shutil.which(name))), None)
    if path is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(INSTALL)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # A container has no user namespaces for the sandbox, and the page is ours.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=HUNG_MS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """Open a report; fails at the end for any message that the browser's console had."""
    contexts, said = [], []

    def open_page(path, *, scheme="light", width=1280):
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        context.set_default_timeout(HUNG_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(path.resolve().as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not said


def make_run(seed, *, stall_ms=0.0, ttft_ms=40.0, requests=20):
    gaps = [[8, 9, 8 + (0 if i % 5 else stall_ms), 8] for i in range(requests)]
    records = [make_record(i, intended_ms=100 * i, ttft_ms=ttft_ms + i, itl_ms=gaps[i]) for i in range(requests)]
    return Run(seed, 1, tuple(records), {"prompt_tokens": 800.0}, started_at="2026-01-02T03:04:05+00:00")


def make_side(side, **how):
    runs = tuple(make_run(seed, **how) for seed in range(3))
    return Measurement(
        engine=f"vllm('llama-3.1-8b', max_num_batched_tokens={1024 if side == 'a' else 8192})",
        workload="random_tokens(input=(400, 7800), output=128, arrivals=poisson(8), requests=300)",
        conditions={"hardware": "emulated h200", "engine": "vllm", "flags": f"side {side} " + "long " * 60,
                    "workload": "0123456789abcdef" * 4},
        runs=runs,
        metrics=tuple(measure(run.records, run.counters) for run in runs),
        side=side,
    )


def check(verdict, reason="", estimate=6.4, interval=(3.71, 11.1)):
    facts = {"pairs": 3, "starts_a": 1, "starts_b": 1, "start_sd": 0.15, "start_sd_source": "default for tails"}
    return CheckResult("itl_p99(b) / itl_p99(a) >= 2", verdict, "itl_p99(b) / itl_p99(a)", Unit.RATIO,
                       Comparison.AT_LEAST, 2.0, estimate, Interval(*interval, 0.995),
                       cause=Stated(reason) if reason else None, facts=facts)


#: Name → what `write_test` takes; every state that a test can be in.
STATES = {
    "pass": ([make_side("a"), make_side("b", stall_ms=200)], [check(Verdict.PASS)], {}),
    "regression": ([make_side("a", ttft_ms=300), make_side("b")],
                   [check(Verdict.FAIL, "the ratio is 1×", 1.0, (0.8, 1.25))], {}),
    "error": ([], [], {"complete": False, "error": "The server died: signal 9.\n" + "  | last words " * 300}),
    "inconclusive": ([make_side("a"), make_side("b")],
                     [check(Verdict.INCONCLUSIVE, "measure more " * 40, 2.2, (1.6, 2.9))], {}),
}


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """`report(names)`: the report of a run with a test for each name, made once."""
    made = {}

    def report(*names):
        if names not in made:
            folder = tmp_path_factory.mktemp("run")
            for number, name in enumerate(names):
                measurements, checks, fields = STATES[name]
                test = f"suites/test_it.py::test_that_ends_with_{name}[h200-{number}-{'x' * 60}]"
                write_test(folder, test, measurements, checks, **fields)
            (folder / "servers/01-vllm-1").mkdir(parents=True)
            (folder / "servers/01-vllm-1/server.log").write_text("INFO " + "a" * 500 + "\n")
            made[names] = write_report([folder], Store(folder / "baselines").read, folder)
        return made[names]

    return report
