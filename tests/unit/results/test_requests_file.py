"""What each request did, in a file of its own: nothing is lost but the clock's origin, and nothing private is kept."""

import gzip
import json
from dataclasses import replace

import pandas as pd
import pytest

from pytest_llmperf.errors import BaselineError
from pytest_llmperf.metrics import measure
from pytest_llmperf.model.record import Outcome, RunRecords
from pytest_llmperf.results.requests_file import decode, encode, read_back
from pytest_llmperf.testing.records import make_record

FAILED = make_record(2, intended_ms=1200, outcome=Outcome.RESET, detail="the answer was: secret")
UNSENT = replace(make_record(3, intended_ms=1300, outcome=Outcome.NO_CONNECTION), sent_ns=None, arrivals_ns=(),
                 chunk_tokens=None, output_tokens=None, prompt_tokens=None)  # fmt: skip
RECORDS = [
    make_record(0, intended_ms=1000, ttft_ms=40, itl_ms=[10, 20, 30], send_delay_ms=2, cached_tokens=3),
    make_record(1, intended_ms=1100, chunk_tokens=[1, 3, 2], coalesced_chunks=1, tag="long"),
    FAILED,
    UNSENT,
]


@pytest.fixture
def write_records(tmp_path):
    def keep(records, **limits):
        path = tmp_path / "r.json.gz"
        path.write_bytes(encode(records, **limits))
        return path

    return keep


def test_every_metric_can_be_computed_again(write_records):
    decoded = decode(write_records(RECORDS))
    assert decoded.left_out == 0
    assert measure(decoded.records).all() == measure(RECORDS).all()


def test_times_count_from_the_first_intended_send(write_records):
    first, *_, unsent = decode(write_records(RECORDS)).records
    assert (first.intended_ns, first.sent_ns, first.arrivals_ns[0]) == (0, 2_000_000, 40_000_000)
    assert unsent.sent_ns is None
    assert replace(first, detail=None) == replace(
        RECORDS[0], intended_ns=0, sent_ns=2_000_000, ended_ns=RECORDS[0].ended_ns - 1_000_000_000,
        arrivals_ns=tuple(stamp - 1_000_000_000 for stamp in RECORDS[0].arrivals_ns),
    )  # fmt: skip


def test_requests_file_omits_error_text_of_server(write_records):
    path = write_records(RECORDS)
    assert b"secret" not in gzip.decompress(path.read_bytes())
    assert decode(path).records[2].detail == "reset"


@pytest.mark.parametrize(("column", "value"), [
    ("cached_tokens", 10**25), ("ended_ns", 1e300), ("sent_ns", "2"), ("arrivals_ns", [1, 10**25]),
    ("chunk_tokens", [True]), ("ended_ns", float("inf")),
])  # fmt: skip
def test_request_file_with_impossible_number_is_refused_and_column_named(write_records, column, value):
    path = write_records(RECORDS)
    columns = json.loads(gzip.decompress(path.read_bytes()))
    columns[column][0] = value
    path.write_bytes(gzip.compress(json.dumps(columns).encode()))
    with pytest.raises(BaselineError, match=f"r.json.gz.*{column} holds"):
        decode(path)


def test_damaged_requests_file_raises_baseline_error(write_records):
    path = write_records(RECORDS)
    data = bytearray(path.read_bytes())
    data[20:40] = bytes(20)
    path.write_bytes(data)
    with pytest.raises(BaselineError, match="no file of requests"):
        decode(path)


def test_stored_records_equal_written_records_except_failure_texts(write_records):
    records = [*RECORDS, replace(RECORDS[1], index=4, replaced_text=True)]
    records.append(replace(RECORDS[2], index=5, reason="HTTP 500"))
    path = write_records(records)
    read = list(read_back(path, 1_000_000_000))
    assert read == [replace(record, detail=None if record.ok else record.outcome.value) for record in records]


def test_released_records_are_read_from_file_and_keep_first_failure_texts(write_records):
    records = RunRecords(RECORDS)
    derived = records.derived(measure)
    path = write_records(RECORDS)
    records.release()
    assert records.loaded  # nobody has said where else they are
    records.stored(lambda: read_back(path, records.start_ns))
    records.release()
    assert not records.loaded
    assert len(records) == 4
    assert not records.loaded
    assert records[2] == FAILED
    assert records.derived(measure) is not derived
    assert records.derived(measure).all() == derived.all()
    assert records.loaded


def test_records_that_were_kept_in_part_are_not_read_back(write_records):
    path = write_records([make_record(i, intended_ms=i, chunks=10) for i in range(100)], most_arrivals=400)
    with pytest.raises(BaselineError, match=r"holds the arrivals of 34 of 100 requests\. Measure with fewer requests"):
        list(read_back(path, 0))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"0" * (256 * 2**20 + 1), "would take more than 175 MiB of memory"),
        (b'{"index":[' + b"[]," * 2**24 + b"[]]}", "would take more than 84 MiB of memory"),
        (b"[" * 100_000, "RecursionError"),
    ],
)
def test_oversized_requests_file_is_refused_before_parsing(tmp_path, text, problem):
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(text, 1))
    del text
    with pytest.raises(BaselineError, match=problem):
        decode(path)


def test_pandas_reads_requests_file(write_records):
    frame = pd.read_json(write_records(RECORDS))
    assert list(frame["outcome"]) == ["ok", "ok", "reset", "no connection"]
    assert frame["arrivals_ns"][0] == [40_000_000, 50_000_000, 70_000_000, 100_000_000]


def test_arrivals_limit_keeps_arrivals_of_every_nth_request(write_records):
    records = [make_record(i, intended_ms=i, chunks=10) for i in range(100)]
    path = write_records(records, most_arrivals=400)
    decoded = decode(path)
    assert [record.index for record in decoded.records] == list(range(0, 100, 3))
    assert decoded.left_out == 100 - len(decoded.records)
    columns = json.loads(gzip.decompress(path.read_bytes()))
    assert len(columns["intended_ns"]) == 100  # their other facts are all there
    assert sum(len(arrivals or ()) for arrivals in columns["arrivals_ns"]) <= 400


def test_requests_file_without_requests_is_empty(write_records):
    assert decode(write_records([])).records == ()


def _less(columns, name):
    return {key: value for key, value in columns.items() if key != name}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: gzip.compress(b"[1, 2]"),
        lambda data: gzip.compress(json.dumps(_less(json.loads(gzip.decompress(data)), "outcome")).encode()),
        lambda data: gzip.compress(gzip.decompress(data).replace(b'"ok"', b'"fine"')),
        lambda data: gzip.compress(gzip.decompress(data).replace(b'"index":[0,', b'"index":[')),
    ],
)
def test_malformed_requests_file_raises_baseline_error_with_path(write_records, spoil):
    path = write_records(RECORDS)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(BaselineError, match=r"r\.json\.gz: this is no file of requests: .*Run the test again"):
        decode(path)
