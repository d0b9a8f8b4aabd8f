"""What crosses the pipes of a load process. A plan is pickled, because both ends are this package."""

from __future__ import annotations

import pickle
import struct

from pytest_llmperf.model.plan import LoadPlan

SIZE = struct.Struct("<Q")
PROGRESS = struct.Struct("<IIIqQ")  # the way back: sent, done, failed, elapsed_ns, reads
READY = PROGRESS.pack(0, 0, 0, -1, 0)  # the first of them: the plan is read, the connections are open
START = struct.Struct("<cq")  # the way there, after the plan: b"s" and when the schedule begins
CANCEL = b"c"


def pack_plan(plan: LoadPlan) -> bytes:
    """The plan, preceded by its size as an unsigned 64-bit integer."""
    packed = pickle.dumps(plan)
    return SIZE.pack(len(packed)) + packed


def unpack_plan(packed: bytes) -> LoadPlan:
    """The plan of `pack_plan`, without the leading size."""
    plan: LoadPlan = pickle.loads(packed)
    return plan
