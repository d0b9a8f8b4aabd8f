"""Tolerated margins that an update learns from the noise of stored sessions."""

import json
from dataclasses import replace

import pytest

from pytest_llmperf.baseline.plan import plan
from pytest_llmperf.baseline.text import decode, encode
from pytest_llmperf.errors import BaselineError

PATH = "h200/serving/test_it.json"
NOISY = (100.0, 104.0, 97.0, 101.0, 103.0, 98.0, 100.0, 103.0, 97.0)


def updated(make, values, margins=None):
    existing = {PATH: make.baseline(make.history(*values[:-1]))}
    test = make.result(make.fresh(tpot_mean=values[-1], margins=margins))
    planned = plan([test], existing, make.terms("20260109T000000Z-000009"), "all")
    return planned, planned.files[PATH].measurements[""].tolerated


@pytest.mark.parametrize(("values", "margins", "low", "high"), [
    (NOISY, None, 0.1, 0.2), ((100.0, 100.3) * 4 + (100.0,), None, None, None),
    (NOISY, {"tpot_mean": 0.05}, None, None), (NOISY[:3], None, None, None),
])
def test_update_stores_margin_learnt_from_noisy_sessions(make, values, margins, low, high):
    planned, tolerated = updated(make, values, margins)
    notes = [reason for entry in planned.entries for reason in entry.reasons if "learnt" in reason]
    if low is None:
        assert not tolerated
        assert not notes
    else:
        assert low < tolerated["tpot_mean"] < high
        assert notes == [f"tolerated margin learnt from the sessions: tpot_mean default → {tolerated['tpot_mean']:.0%}"]


def test_learnt_margin_is_one_line_of_the_file_and_read_back(make):
    stored = replace(make.history(100.0, 101.0), tolerated={"tpot_mean": 0.12})
    data = encode(make.baseline(stored))
    assert b'"tolerated": {\n        "tpot_mean": 0.12\n      }' in data
    assert decode(data, "f").measurements[""] == stored


@pytest.mark.parametrize(
    "margin", ['{"tpot_mean": 2.5}', '{"tpot_mean": null}', '{"ttft_p50": 0.1}', '{"tpot_mean": 0}']
)
def test_impossible_learnt_margin_is_refused_with_file_and_key(make, margin):
    stored = replace(make.history(100.0), tolerated={"tpot_mean": 0.12})
    data = encode(make.baseline(stored)).replace(b'{\n        "tpot_mean": 0.12\n      }', margin.encode())
    (name,) = json.loads(margin)
    with pytest.raises(BaselineError, match=f"^f.*: {name} is no primary metric with a tolerated margin"):
        decode(data, "f")
