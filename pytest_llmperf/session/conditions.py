"""What must be equal for a comparison to mean something."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from pytest_llmperf.engines.server import Server
from pytest_llmperf.session.warm_up import RULE
from pytest_llmperf.telemetry.hardware import Hardware
from pytest_llmperf.workload import Workload


def conditions(
    server: Server, facts: Mapping[str, str], workload: Workload, hardware: Hardware, kind: str
) -> dict[str, str]:
    """The conditions of a measurement, name → value as text."""
    spec = server.spec
    known = {
        "hardware": kind,
        "gpu": hardware.gpus[0].name if hardware.gpus and kind != "cpu" else "none",
        "gpu_count": str(len(hardware.gpus)) if kind != "cpu" else "0",
        "driver": hardware.driver or "none",
        "engine": spec.engine,
        "model": spec.model,
        "weights": server.model.weights if server.model else "checkpoint",
        "flags": json.dumps(dict(spec.flags), sort_keys=True),
        "env": json.dumps(dict(spec.env), sort_keys=True),
        "workload": workload.digest(),
        "warm_up": RULE,
    }
    return known | {f"engine.{name}": value for name, value in facts.items()}


def digest(known: Mapping[str, str]) -> str:
    """Short digest of conditions: equal digests may be compared."""
    return hashlib.sha256(json.dumps(dict(known), sort_keys=True).encode()).hexdigest()[:16]
