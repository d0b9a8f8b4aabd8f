"""What another package imports to add an engine, router, connector, hardware kind, metric, workload or report sink.

Names here and in `pytest_llmperf` keep their meaning as long as `API` stays the same.
"""

from __future__ import annotations

from pytest_llmperf.doors import API
from pytest_llmperf.engines.adapter import EngineAdapter, Placement, Retired
from pytest_llmperf.engines.connectors.adapter import ConnectorAdapter
from pytest_llmperf.engines.control.reader import completion_body
from pytest_llmperf.engines.routers.adapter import RouterAdapter, RouterPlacement
from pytest_llmperf.engines.spec import build_spec, command_line, flags_of
from pytest_llmperf.kinds.rows import HardwareKind
from pytest_llmperf.metrics.registry import AddedMetric
from pytest_llmperf.metrics.units import Direction, Unit
from pytest_llmperf.model.api import Api
from pytest_llmperf.model.deployment import Connector, Router, router_of
from pytest_llmperf.model.engine import EngineSpec, Flag
from pytest_llmperf.model.record import Outcome, RequestRecord
from pytest_llmperf.model.request import Request
from pytest_llmperf.report.export import Sink
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.measurement import Measurement, TestResult
from pytest_llmperf.telemetry.prometheus import Scrape
from pytest_llmperf.workload.arrivals import Arrivals
from pytest_llmperf.workload.base import Workload
from pytest_llmperf.workload.expression import AddedWorkload

__all__ = [
    "API",
    "AddedMetric",
    "AddedWorkload",
    "Api",
    "Arrivals",
    "CheckResult",
    "Connector",
    "ConnectorAdapter",
    "Direction",
    "EngineAdapter",
    "EngineSpec",
    "Flag",
    "HardwareKind",
    "Measurement",
    "Outcome",
    "Placement",
    "Request",
    "RequestRecord",
    "Retired",
    "Router",
    "RouterAdapter",
    "RouterPlacement",
    "Scrape",
    "Sink",
    "TestResult",
    "Unit",
    "Workload",
    "build_spec",
    "command_line",
    "completion_body",
    "flags_of",
    "router_of",
]
