"""The rule of --reference on stored runs of six servers resident on one H200, with kernels of known length."""

from collections import Counter
from itertools import permutations
from pathlib import Path

import pytest

from pytest_llmperf import Verdict

STORED = Path(__file__).parents[3] / "docs/measured/h200/resident"
PLANTED_US = (0.0, 0.0, 0.0, 107.0, 107.0, 53.5)


@pytest.mark.parametrize(
    ("planted_us", "verdicts"),
    [
        (107.0, {Verdict.FAIL: 38}),
        (53.5, {Verdict.INCONCLUSIVE: 9}),
        (0.0, {Verdict.PASS: 33, Verdict.INCONCLUSIVE: 2}),
    ],
)
def test_reference_rule_gives_stored_verdicts_for_planted_kernel(load_script, planted_us, verdicts):
    script = load_script("judge_resident_builds")
    servers = script.resident_servers(sorted(STORED.glob("x-six-servers-*.json")))
    results = [
        result
        for a, b in permutations(range(len(servers)), 2) if PLANTED_US[a] == planted_us and PLANTED_US[b] == 0
        for result, _ in script.comparisons(servers[a], servers[b], "itl_p50")
    ]
    assert Counter(result.verdict for result in results) == verdicts
    assert all(result.estimate is not None for result in results)
