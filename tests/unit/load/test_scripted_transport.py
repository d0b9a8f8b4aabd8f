"""The fakes keep the contract that they stand in for."""

import threading

from pytest_llmperf.load.transport import Transport
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.testing.records import make_record
from pytest_llmperf.testing.scripted_transport import ScriptedTransport, stream_exchange
from pytest_llmperf.testing.streams import StreamShape

PLAN = LoadPlan("127.0.0.1", 1, tuple(PlannedRequest(i, "/", b"", at_ns=i * 1000) for i in range(3)))


def streams(plan):
    return [stream_exchange(StreamShape(), index=r.index, intended_ns=r.at_ns or 0) for r in plan.requests]


def test_scripted_transport_returns_script_and_stores_plan():
    transport = ScriptedTransport(streams)
    typed: Transport = transport
    seen = []
    replay = typed.replay(PLAN, cancel=threading.Event(), progress=seen.append)
    assert [e.index for e in replay.exchanges] == [0, 1, 2]
    assert replay.ended_ns == 2000 + 80_000_000
    assert transport.plans == [PLAN]
    assert (seen[0].sent, seen[0].done, seen[0].failed) == (3, 3, 0)


def test_cancelled_scripted_replay_sends_no_request():
    cancel = threading.Event()
    cancel.set()
    replay = ScriptedTransport(streams).replay(PLAN, cancel=cancel)
    assert {e.ending for e in replay.exchanges} == {Ending.NOT_SENT}


def test_records_are_consistent():
    record = make_record(intended_ms=1, ttft_ms=50, itl_ms=10, chunks=3, send_delay_ms=0.5)
    assert record.ok
    assert record.arrivals_ns == (51_000_000, 61_000_000, 71_000_000)
    assert record.sent_ns == 1_500_000
    assert record.output_tokens == record.asked_output_tokens == 3
    assert make_record(chunk_tokens=(1, 3)).output_tokens == 4
    assert len(make_record(itl_ms=(1, 2, 3)).arrivals_ns) == 4
    assert make_record(outcome=Outcome.RESET).detail == "reset"
