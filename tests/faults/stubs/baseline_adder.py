"""Adds one to a stored number so many times: baseline_adder.py FOLDER TIMES. Others do the same."""

import sys
from pathlib import Path

from pytest_llmperf.baseline.store import Store
from pytest_llmperf.results.baseline import Baseline, StoredMeasurement, StoredSession

PATHS = ("h200/x/test_x.json", "h200/y/test_y.json")


def stored(value):
    session = StoredSession("id", "date", None, "host", None, True, ((0, 1),), {"m": (float(value),)})
    return Baseline("x", {"": StoredMeasurement({}, (session,), ("m",), {"m": "1"})})


def value_of(baselines):
    (value,) = {baseline.measurements[""].sessions[0].values("m")[0] for baseline in baselines.values()} or {0.0}
    return value


if __name__ == "__main__":
    for _ in range(int(sys.argv[2])):
        store = Store(Path(sys.argv[1]), timeout_s=600)
        with store.update() as write:
            value = value_of(store.read_all("h200"))
            write({path: stored(value + 1) for path in PATHS})
