"""What a claim costs: server starts are dear, so a side that decides everything alone is the last one."""

import json
import sys
from pathlib import Path

import pytest

from pytest_llmperf.cli import main
from pytest_llmperf.session.unchecked import contains_comparison

pytestmark = pytest.mark.emulated
helpers = sys.modules[__name__]

SUITE = """
from pytest_llmperf import closed, random_tokens, vllm

def test_it(perf):
    fast = vllm("llama-3.1-8b", max_model_len=8192)
    slow = fast.with_flags(max_num_seqs=SLOW)
    traffic = random_tokens(input=200, output=40, arrivals=closed(4), requests=24)
    claim = perf.claim(fast, slow, traffic, "ttft_p50(b) / ttft_p50(a) >= CLAIMED", allow={"tpot_mean": 10.0}, MORE)
"""
COMPARED = "    perf.compare_with_baseline(claim.a)\n"


@pytest.fixture
def claim(run, pytester):
    def claim(more, *args, slow=1, claimed=1.5, compared=True):
        suite = SUITE + COMPARED * compared
        text = suite.replace("MORE", more).replace("SLOW", str(slow)).replace("CLAIMED", str(claimed))
        result, _ = run(text, "--emulate", "h200", *args)
        newest = max(Path(pytester.path).glob(".llmperf/runs/*/tests/*.json"), key=lambda path: path.stat().st_mtime_ns)
        return result, json.loads(newest.read_text())

    return claim


@pytest.mark.parametrize("mechanism", ["kv_blocks(a) >= 1000000000", "eager(a) == 1"])
def test_a_mechanism_that_does_not_work_needs_no_other_side(claim, mechanism):
    result, run_file = claim(f'mechanism=["{mechanism}", "kv_blocks(b) >= 1"]')
    assert result.ret == 1
    assert [side["side"] for side in run_file["measurements"]] == ["a"]
    assert run_file["claims"][0]["b"] is None
    check, comparison = run_file["checks"]
    assert (check["subject"], check["verdict"]) == (mechanism, "FAIL")
    assert check["facts"]["unmeasured_side"] == "B"
    assert "side B was therefore not measured" in check["reason"]
    assert comparison["verdict"] == "NO_BASELINE"  # what it cost is told all the same


def test_mechanism_check_on_side_b_is_judged_after_both_sides(claim):
    result, run_file = claim('mechanism="eager(b) == 1"', compared=False)
    assert result.ret == 1
    assert [side["side"] for side in run_file["measurements"]] == ["a", "b"]
    cause, claimed, *_ = run_file["checks"]
    assert (cause["verdict"], claimed["verdict"]) == ("FAIL", "PASS")  # what both sides showed is told
    assert "was not measured" not in cause["reason"]


RUNNING_SIDE = """
from pytest_llmperf import closed, random_tokens, vllm

def test_it(perf):
    fast = vllm("llama-3.1-8b", max_model_len=8192)
    slow = fast.with_flags(max_num_seqs=1)
    traffic = random_tokens(input=200, output=40, arrivals=closed(4), requests=24)
    perf.measure(slow, traffic, runs=1)
    claim = perf.claim(fast, slow, traffic, "ttft_p50(b) / ttft_p50(a) >= 1.5", mechanism="eager(b) == 1")
    assert claim.a is None
"""


def test_running_side_b_without_mechanism_fails_before_side_a_starts(run):
    result, _ = run(RUNNING_SIDE, "--emulate", "h200", "--llmperf-set", "resident_servers=none")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*side A was therefore not measured*"])


def sides_of(run_file):
    return [(side["conditions"].get("treatment"), [run["start_id"] for run in side["runs"]])
            for side in run_file["measurements"]]


def test_sides_that_fit_into_memory_alternate_run_by_run(claim):
    """The idle sibling is a condition of both sides."""
    _, run_file = claim("", compared=False)
    assert run_file["claims"][0]["order"] == {"1": "ABBAAB"}
    assert sides_of(run_file) == [("1 idle server beside it", [1, 1, 1]), ("1 idle server beside it", [2, 2, 2])]
    assert [side["alone"] for side in run_file["measurements"]] == ["", ""]


@pytest.mark.parametrize(("more", "options", "compared", "reason"), [
    ("", (), True, "the test compares with a stored baseline"),
    ("", ("--llmperf-set", "resident_servers=none"), False, "resident_servers is \"none\""),
    ("may_preempt=True", (), False, "preemptions are allowed"),
    ('mechanism="kv_blocks(a) >= 1"', (), False, "the claim is about kv_blocks"),
    ("", ("--plant-flag", "vllm:gpu-memory-utilization=0.8"), False, "sets gpu_memory_utilization itself"),
], ids=["baseline", "setting", "preemptions", "kv blocks", "memory flag"])
def test_sides_run_alone_in_claims_about_memory_and_before_baseline_comparison(claim, more, options, compared, reason):
    result, run_file = claim(more, *options, compared=compared)
    result.stdout.fnmatch_lines([f"*2 servers do not run at the same time: *{reason}*"])
    assert run_file["claims"][0]["order"] == {"1": "AB"}
    assert sides_of(run_file) == [(None, [1, 1, 1]), (None, [2, 2, 2])]
    assert all(reason in side["alone"] for side in run_file["measurements"])


def test_reason_for_servers_alone_is_shown_and_leaves_baseline_comparable(claim, pytester, capsys):
    """The second claim allows preemptions, so it gives another reason than the session that stored the baseline."""
    claim("", "--update-baselines-new")
    _, run_file = claim("may_preempt=True")
    reason = "preemptions are allowed, and a server beside it takes memory"
    assert [side["alone"] for side in run_file["measurements"]] == [reason, reason]
    assert run_file["checks"][-1]["verdict"] == "PASS"
    folder = max(Path(pytester.path).glob(".llmperf/runs/*"))
    assert main(["show", str(folder), "test_it"]) == 0
    assert capsys.readouterr().out.count(f"The server ran alone: {reason}\n") == 2
    assert (folder / "report.html").read_text().count(f"The server ran alone: {reason}.") == 2


@pytest.mark.parametrize(("options", "order"), [((), "AB"), (("--llmperf-set", "resident_servers=share"), "ABBAAB")])
def test_sides_that_cannot_start_at_once_run_together_only_with_resident_servers_share(run, pytester, options, order):
    """An SGLang server derives its memory from the free memory, so SGLang servers start one after the other."""
    text = SUITE.replace("MORE", "").replace("SLOW", "1").replace("CLAIMED", "1.5").replace("vllm", "sglang")
    text = text.replace("max_model_len", "context_length").replace("max_num_seqs", "max_running_requests")
    result, _ = run(text, "--emulate", "h200", *options)
    (run_file,) = Path(pytester.path).glob(".llmperf/runs/*/tests/*.json")
    assert json.loads(run_file.read_text())["claims"][0]["order"] == {"1": order}
    assert ("cannot start at the same time" in result.stdout.str()) is (order == "AB")


def test_sides_that_exceed_memory_of_gpu_run_alone(run, pytester):
    """Two servers with 15 GiB of weights each do not fit into the 22.5 GiB of an L4."""
    text = SUITE.replace("MORE", "").replace("SLOW", "1").replace("CLAIMED", "1.5")
    result, _ = run(text.replace("max_model_len=8192", "max_model_len=4096"), "--emulate", "l4")
    (run_file,) = Path(pytester.path).glob(".llmperf/runs/*/tests/*.json")
    assert json.loads(run_file.read_text())["claims"][0]["order"] == {"1": "AB"}
    result.stdout.fnmatch_lines(["*2 servers do not run at the same time: 2 servers need 38 GiB*GPU has 22 GiB*"])


def test_open_claim_that_lacks_starts_starts_both_sides_anew(claim):
    _, run_file = claim("", compared=False, slow=512, claimed=0.85)
    (_, a), (_, b) = sides_of(run_file)
    assert (a, b) == ([1] * 3 + [4] * 3 + [5] * 3, [2] * 3 + [3] * 3 + [6] * 3)
    assert run_file["claims"][0]["order"] == {"1": "ABBAABBAABBAABBAAB"}


SLOWER = "--emulate-fault=step_time=+6%"  # by about what is tolerated, so that three runs decide nothing


def test_undecided_comparison_after_a_claim_starts_the_candidate_again(claim):
    claim("", "--update-baselines-new")
    _, run_file = claim("", SLOWER)
    a, b = ([(run["start_id"], run["block"], run["seed"]) for run in side["runs"]] for side in run_file["measurements"])
    assert a == [(1, 1, 0), (1, 1, 1), (1, 1, 2)] + [(3, None, seed) for seed in (0, 1, 2, 0, 1)]
    assert b == [(2, 2, 2), (2, 2, 1), (2, 2, 0)]
    assert run_file["checks"][0]["n"].startswith("3 pairs")


def test_claim_near_limit_ends_at_the_first_look(claim):
    """Equal sides against a limit of 1: no number of server starts that a claim makes would decide."""
    equal = {"slow": 512, "claimed": 1}
    claim("", "--update-baselines-new", "--llmperf-accept=open on purpose", **equal)
    _, run_file = claim("", SLOWER, **equal)
    a, b = run_file["measurements"]
    assert [[run["seed"] for run in side["runs"] if run["block"]] for side in (a, b)] == [[0, 1, 2], [2, 1, 0]]
    assert run_file["checks"][0]["n"].startswith("3 pairs")


def test_extension_limit_of_zero_prevents_further_runs(claim):
    """Three runs a side on one start, whatever stays open, and no start of the candidate for the baseline."""
    equal = {"slow": 512, "claimed": 1}
    result, run_file = claim("", "--llmperf-extension-limit=0", compared=False, **equal)
    assert result.ret == 11
    assert [[run["seed"] for run in side["runs"]] for side in run_file["measurements"]] == [[0, 1, 2], [0, 1, 2]]
    claim("", "--update-baselines-new")
    _, run_file = claim("", SLOWER, "--llmperf-extension-limit=0")
    assert [len(side["runs"]) for side in run_file["measurements"]] == [3, 3]


@pytest.mark.parametrize("text", ["-1", "nan", "soon"])
def test_invalid_extension_limit_is_refused(run, text):
    result, _ = run("def test_it(): ...", "--emulate", "h200", f"--llmperf-extension-limit={text}")
    assert result.ret == 4
    result.stderr.fnmatch_lines([f"*--llmperf-extension-limit:*{text}*"])


def compares(perf):
    perf.compare_with_baseline(perf.measure("engine", "load"))


def compares_by_helper(perf):
    compares(perf)


def compares_in_branch(perf):
    for compare in (lambda: perf.compare_with_baseline(None),):
        compare()


class Steps:
    def judge(self, perf):
        compares(perf)

    @staticmethod
    def begin(perf):
        perf.measure("engine", "load")


STEPS = Steps()


def compares_by_method(perf):
    STEPS.judge(perf)


def compares_in_another_module(perf):
    helpers.compares_by_helper(perf)


def begins_by_method(perf):
    Steps.begin(perf)


def claims_only(perf):
    claims_only(perf)  # a function that calls itself is read once


@pytest.mark.parametrize(("test", "expected"), [(compares, True), (compares_by_helper, True),
                                                (compares_in_branch, True), (compares_by_method, True),
                                                (compares_in_another_module, True), (begins_by_method, False),
                                                (claims_only, False), (None, False)])
def test_comparison_with_baseline_is_found_in_code_of_test(test, expected):
    assert contains_comparison(test) is expected
