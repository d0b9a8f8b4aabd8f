"""The canonical text: what goes in comes out, equal contents have equal bytes, and what is wrong is said."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmperf.baseline.text import decode, encode, rounded
from pytest_llmperf.errors import BaselineError
from pytest_llmperf.results.baseline import Baseline, StoredMeasurement, StoredSession
from pytest_llmperf.results.strict_json import LARGEST_NUMBER, SMALLEST_NUMBER

texts = st.text(max_size=20)
sizes = st.floats(SMALLEST_NUMBER, LARGEST_NUMBER).map(rounded)
numbers = st.just(0.0) | sizes | sizes.map(lambda size: -size)
ints = st.integers(-(2**62), 2**62)


@st.composite
def measurements(draw):
    metrics = draw(st.lists(texts, min_size=1, max_size=4, unique=True))
    ids = draw(st.lists(texts, min_size=1, max_size=4, unique=True))
    anchor = draw(st.sampled_from(ids))
    sessions = tuple(draw(sessions_of(session_id, metrics, anchor=session_id == anchor)) for session_id in ids)
    primaries = tuple(draw(st.lists(st.sampled_from(metrics), unique=True)))
    fingerprint = draw(st.dictionaries(texts, texts, max_size=3))
    formulas, workload = {metric: draw(texts) for metric in metrics}, draw(st.none() | st.text(min_size=1, max_size=20))
    return StoredMeasurement(fingerprint, sessions, primaries, formulas, workload=workload)


@st.composite
def sessions_of(draw, name, metrics, *, anchor):
    runs = tuple(draw(st.lists(st.tuples(ints, ints), min_size=1, max_size=3)))
    values = st.lists(st.none() | numbers, min_size=len(runs), max_size=len(runs)).map(tuple)
    differs = draw(st.dictionaries(texts, st.none() | texts, max_size=2))
    commit, accepted = draw(st.none() | texts), draw(st.none() | texts)
    columns = {metric: draw(values) for metric in metrics}
    return StoredSession(name, draw(texts), commit, draw(texts), accepted, anchor, runs, columns, differs)


baselines = st.builds(Baseline, texts, st.dictionaries(texts, measurements(), max_size=3))


@settings(max_examples=50, deadline=None)
@given(baselines)
def test_baseline_text_is_canonical_and_can_be_read_back(baseline):
    data = encode(baseline)
    assert decode(data, "f") == baseline
    assert encode(decode(data, "f")) == data
    assert data.endswith(b"}\n")
    # Equal contents have equal bytes, in whatever order they were put together.
    turned = Baseline(baseline.test, dict(reversed(baseline.measurements.items())))
    assert encode(turned) == data


@settings(max_examples=50, deadline=None)
@given(baselines)
def test_a_file_edited_by_hand_is_read_alike(baseline):
    data = encode(baseline)
    assert decode(json.dumps(json.loads(data), indent=7).encode(), "f") == baseline


def test_lone_surrogates_survive(make):
    odd = make.baseline(make.history(1.0), test="a.py::x[\udc80\ud800]")
    assert decode(encode(odd), "f") == odd


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_stored_values_keep_six_digits(value):
    assert rounded(value) == pytest.approx(value, rel=5e-6, abs=0)
    assert rounded(rounded(value)) == rounded(value)


def test_baseline_text_matches_documented_example(make):
    stored = make.stored(
        make.session(0, anchor=True, tpot_mean=(6.4567891, 6.0, None), ttft_p50=43.0),
        make.session(1, accepted="new driver", tpot_mean=6.5),
    )
    assert encode(make.baseline(stored)).decode() == """\
{
  "measurements": {
    "": {
      "fingerprint": {
        "engine.version": "1.0",
        "hardware": "h200",
        "model": "m"
      },
      "formulas": {
        "tpot_mean": "tpot.1/mean",
        "ttft_p50": "ttft.1/p50"
      },
      "metrics": {
        "tpot_mean": [[6.45679, 6, null], [6.5, 6.5, 6.5]],
        "ttft_p50": [[43, 43, 43], [null, null, null]]
      },
      "primaries": ["tpot_mean"],
      "sessions": [
        {"accepted": null, "anchor": true, "commit": "abc", "date": "2026-01-01", "host": "host", \
"id": "20260100T000000Z-000000", "runs": [[0, 1], [1, 1], [2, 1]]},
        {"accepted": "new driver", "anchor": false, "commit": "abc", "date": "2026-01-01", "host": "host", \
"id": "20260101T000000Z-000001", "runs": [[0, 1], [1, 1], [2, 1]]}
      ]
    }
  },
  "schema": 1,
  "test": "suites/test_serving.py::test_it"
}
"""


def test_a_changed_metric_is_a_changed_line(make):
    text = encode(make.baseline(make.stored(make.session(0, anchor=True, tpot_mean=6.5, ttft_p50=43.0))))
    two = encode(make.baseline(make.stored(make.session(0, anchor=True, tpot_mean=6.6, ttft_p50=43.0))))
    changed = [(a, b) for a, b in zip(text.splitlines(), two.splitlines(), strict=True) if a != b]
    assert len(changed) == 1
    assert b"tpot_mean" in changed[0][0]


def test_infinite_value_is_not_stored(make):
    with pytest.raises(ValueError, match="cannot be stored"):
        encode(make.baseline(make.history(float("inf"))))


VALID = {
    "schema": 1,
    "test": "t",
    "measurements": {
        "": {
            "fingerprint": {"engine.version": "1"},
            "formulas": {"m": "m.1"},
            "metrics": {"m": [[1.5, 2]]},
            "primaries": ["m"],
            "sessions": [
                {"id": "i", "date": "d", "commit": None, "host": "h", "accepted": None, "anchor": True,
                 "runs": [[0, 1], [1, 1]]},
            ],
        }
    },
}  # fmt: skip


def test_the_example_is_valid():
    assert decode(json.dumps(VALID).encode(), "f").measurements[""].sessions[0].values("m") == (1.5, 2.0)


def edited(old, new):
    text = json.dumps(VALID)
    assert old in text
    return text.replace(old, new).encode()


SESSION = json.dumps(VALID["measurements"][""]["sessions"][0])
WRONG = {
    "empty": (b"", "line 1, column 1"),
    "truncated": (json.dumps(VALID, indent=2).encode()[:300], r"line \d+, column \d+"),
    "binary": (b'{"schema": \xff}', "no UTF-8 at byte 11"),
    "conflict": (b"{\n<<<<<<< HEAD\n}\n", "conflict markers"),
    "deep": (b"[" * 100_000, "recursion"),
    "no object": (b"[]", r"\[\] stands where an object belongs"),
    "no schema": (b"{}", "schema is missing"),
    "newer": (edited('"schema": 1', '"schema": 2'), "schema 2.*reads 1.*Install a newer one"),
    "older": (edited('"schema": 1', '"schema": 0'), "there never was a schema 0"),
    "schema of another type": (edited('"schema": 1', '"schema": "1"'), "at schema: "),
    "schema true": (edited('"schema": 1', '"schema": true'), "at schema: "),
    "NaN": (edited("1.5", "NaN"), "NaN is no number"),
    "Infinity": (edited("1.5", "-Infinity"), "-Infinity is no number"),
    "overflow": (edited("1.5", "1e999"), r'measurements\.""\.metrics\.m\[0\]\[0\]: .*finite number'),
    "huge": (edited("1.5", "1" + "0" * 400), "finite number"),
    "huger": (edited("1.5", "1" + "0" * 5000), "digits"),
    "huge seed": (edited("[0, 1]", f"[{2**70}, 1]"), "63 bits"),
    "too small": (edited("1.5", "1e-308"), r'metrics\.m\[0\]\[0\]: 1e-308 is no measured value'),
    "smallest float": (edited("1.5", "5e-324"), "5e-324 is no measured value"),
    "too large": (edited("1.5", "-1e308"), "-1e.308 is no measured value"),
    "text for a number": (edited("1.5", '"1.5 ms"'), "finite number"),
    "true for a number": (edited("1.5", "true"), "finite number"),
    "twice": (edited('"test": "t"', '"test": "t", "test": "u"'), "'test' stands twice"),
    "unknown key": (edited('"test": "t"', '"test": "t", "unit": "s"'), "unit is not known here"),
    "missing key": (edited('"host": "h", ', ""), r'measurements\.""\.sessions\[0\]: host is missing'),
    "a value too few": (edited("[1.5, 2]", "[1.5]"), "1 values, and the session has 2 runs"),
    "a session too many": (edited("[[1.5, 2]]", "[[1.5, 2], [3]]"), "values of 2 sessions, and there are 1"),
    "no runs": (edited("[[0, 1], [1, 1]]", "[]"), "at least one run"),
    "no session": (edited(f"[{SESSION}]", "[]").replace(b"[[1.5, 2]]", b"[]"), "exactly one session is the anchor"),
    "no anchor": (edited("true", "false"), "exactly one session is the anchor"),
    "one session twice": (
        edited(SESSION, f"{SESSION}, {SESSION}").replace(b"[[1.5, 2]]", b"[[1.5, 2], [1, 2]]"),
        "session i stands there twice",
    ),
    "a run of three": (edited("[0, 1]", "[0, 1, 2]"), r"runs\[0\]: a run is"),
    "no formula": (edited('{"m": "m.1"}', "{}"), "not one per metric: m"),
    "a primary without values": (edited('"primaries": ["m"]', '"primaries": ["x"]'), "x has no values"),
    "a fingerprint that is no text": (edited('"engine.version": "1"', '"engine.version": 1'), '"engine.version"'),
}


@pytest.mark.parametrize(("data", "says"), WRONG.values(), ids=WRONG)
def test_corrupt_text_is_refused_with_position(data, says):
    with pytest.raises(BaselineError, match=f"(?s)^x/y.json: .*{says}") as caught:
        decode(data, "x/y.json")
    assert len(str(caught.value)) < 400
    assert any(way in str(caught.value) for way in ("git checkout", "newer one"))


@given(st.binary(max_size=60) | st.integers(0, 500).map(lambda n: json.dumps(VALID).encode()[:n]))
def test_random_bytes_raise_only_baseline_error(data):
    if data.strip() != json.dumps(VALID).encode():
        with pytest.raises(BaselineError):
            decode(data, "f")
