"""What crosses the pipes of a load process. A plan is one JSON head, then the bodies as they are."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, astuple

from pytest_llmperf.model.plan import Channel, ConversationPart, LoadPlan, PlannedRequest, StreamLimits
from pytest_llmperf.model.request import Cancellation, RetryPolicy

SIZE = struct.Struct("<Q")
PROGRESS = struct.Struct("<IIIqQ")  # the way back: sent, done, failed, elapsed_ns, reads
READY = PROGRESS.pack(0, 0, 0, -1, 0)  # the first of them: the plan is read, the connections are open
START = struct.Struct("<cq")  # the way there, after the plan: b"s" and when the schedule begins
CANCEL = b"c"


def pack_plan(plan: LoadPlan) -> bytes:
    """The plan, preceded by its size as an unsigned 64-bit integer."""
    head = {
        "host": plan.host,
        "port": plan.port,
        "headers": plan.headers,
        "concurrency": plan.concurrency,
        "limits": asdict(plan.limits),
        "channel": asdict(plan.channel),
        "retry_stale": plan.retry_stale,
        "requests": [
            (r.index, r.path, len(r.body), r.at_ns, r.after, r.think_ns,
             *(value and astuple(value) for value in (r.part, r.cancellation, r.retry)), r.answers, r.ends, r.session)
            for r in plan.requests
        ],
    }
    text = json.dumps(head).encode()
    packed = b"".join((SIZE.pack(len(text)), text, *(r.body for r in plan.requests)))
    return SIZE.pack(len(packed)) + packed


def unpack_plan(packed: bytes) -> LoadPlan:
    """The reverse, without the leading size."""
    (size,) = SIZE.unpack_from(packed)
    start = SIZE.size + size
    head = json.loads(packed[SIZE.size : start])
    channel = head["channel"]
    requests = []
    for (index, path, length, at_ns, after, think_ns, part, cancellation, retry, answers, ends,
         session) in head["requests"]:
        body = packed[start : start + length]
        requests.append(PlannedRequest(
            index, path, body, at_ns, after, think_ns, part and ConversationPart(*part),
            cancellation and Cancellation(*cancellation), retry and RetryPolicy(*retry), answers, tuple(ends),
            session=session,
        ))
        start += length
    return LoadPlan(
        host=head["host"],
        port=head["port"],
        requests=tuple(requests),
        headers=tuple((name, value) for name, value in head["headers"]),
        concurrency=head["concurrency"],
        limits=StreamLimits(**head["limits"]),
        channel=Channel(**channel | {"proxy": tuple(channel["proxy"]) if channel["proxy"] else None}),
        retry_stale=head["retry_stale"],
    )
