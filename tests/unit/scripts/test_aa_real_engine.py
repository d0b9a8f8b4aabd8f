"""A/A on a real engine: the exit code of the script for artificial sessions."""

import pytest

QUIET = {
    "A-00": [],
    "A-01": ["INCONCLUSIVE: baseline tpot_mean: +3.0 %"],
    "slower": ["PASS: baseline tpot_mean: +9.0 %"],
    "beside": ["INCONCLUSIVE: tpot_mean(held) / tpot_mean(whole) <= 1.02: 1.01×"],
    "beside-slower": ["FAIL: tpot_mean(held) / tpot_mean(whole) <= 1.02: 1.13×"],
}


@pytest.mark.parametrize(
    ("expected", "code", "said"),
    [
        ({}, 0, ""),
        ({"slower": ["FAIL: baseline tpot_mean: +12.0 %"]}, 0, ""),
        ({"A-01": ["PASS: baseline ttft_p50: +1.0 %", "FAIL: baseline tpot_mean: +9.0 %"]}, 1, "A-01: a false alarm"),
        ({"beside": ["FAIL: tpot_mean(held) / tpot_mean(whole) <= 1.02: 1.1×"]}, 1, "beside: a false alarm"),
        ({"A-01": ["ERROR: run 2 is no evidence: not steady"]}, 1, "A-01: a false alarm"),
        ({"A-01": []}, 1, "A-01: judged nothing"),
        ({"beside": []}, 1, "beside: judged nothing"),
        ({"beside-slower": QUIET["beside"]}, 1, "beside-slower: not found"),
        ({"beside-slower": []}, 1, "beside-slower: not found"),
    ],
)
def test_false_alarm_or_missed_slowdown_makes_exit_code_nonzero(load_script, tmp_path, capsys, expected, code, said):
    def measure(project, name, *options, **env):
        assert (project / "test_aa.py").exists()
        return (QUIET | expected)[name]

    arguments = ["vllm-cpu", "--sessions", "2", "--project", str(tmp_path / "aa")]
    assert load_script("aa_real_engine").main(arguments, measure) == code
    assert said in capsys.readouterr().out


def test_unrequested_sessions_are_not_reported_as_missed(load_script, tmp_path):
    arguments = ["vllm-cpu", "--sessions", "0", "--attempts", "0", "--project", str(tmp_path / "aa")]
    assert load_script("aa_real_engine").main(arguments, None) == 0
