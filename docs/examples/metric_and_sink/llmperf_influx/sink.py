"""InfluxDB line protocol: a line per measurement and run, with each metric that has a value as a field."""

import json
from datetime import datetime
from math import isfinite

from pytest_llmperf.extending import Sink


def tags(values):
    """Tags that have a value; comma, equals sign and space are escaped by a backslash."""
    texts = {name: "".join(f"\\{character}" if character in ",= " else character for character in str(value))
             for name, value in values.items()}
    return ",".join(f"{name}={text}" for name, text in texts.items() if text)


def host_of(test):
    """Digest of the host's name, from the run folder; "" without a run folder."""
    path = None if test.folder is None else test.folder / "session.json"
    return json.loads(path.read_text())["host"] if path is not None and path.is_file() else ""


def files(tests):
    lines = []
    for test in tests:
        common = {"test": test.test, "verdict": test.verdict.value, "host": host_of(test)}
        for measurement in test.measurements:
            conditions = measurement.conditions
            common |= {"kind": conditions.get("hardware", ""), "version": conditions.get("engine.version", "")}
            for number, run in enumerate(measurement.runs):
                values = {name: value for name, value in run.metrics.all().items()
                          if value is not None and isfinite(value)}
                fields = ",".join(f"{name}={value!r}" for name, value in sorted(values.items()))
                began = f" {datetime.fromisoformat(run.started_at).timestamp() * 1e9:.0f}" if run.started_at else ""
                if fields:
                    lines.append(f"llmperf,{tags(common | {'run': number})} {fields}{began}")
    return {"": "".join(f"{line}\n" for line in lines).encode()}


INFLUX = Sink(api=1, name="influx", files=files)
