"""Hooks by which a project's `conftest.py` adds what packages add by entry points (`pytest_llmperf.doors`).

Each hook returns objects that state the version of the doors for which they were written in their attribute `api`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_llmperf.engines.adapter import EngineAdapter
    from pytest_llmperf.engines.connectors.adapter import ConnectorAdapter
    from pytest_llmperf.engines.routers.adapter import RouterAdapter
    from pytest_llmperf.kinds.rows import HardwareKind
    from pytest_llmperf.metrics.registry import AddedMetric
    from pytest_llmperf.report.export import Sink
    from pytest_llmperf.workload.expression import AddedWorkload


def pytest_llmperf_engines(config: pytest.Config) -> Iterable[EngineAdapter]:  # type: ignore[empty-body]
    """Engines that suites can start by `build_spec(NAME, …)`."""


def pytest_llmperf_routers(config: pytest.Config) -> Iterable[RouterAdapter]:  # type: ignore[empty-body]
    """Routers that `replicas(…, router=Router(NAME, POLICY))` may name."""


def pytest_llmperf_connectors(config: pytest.Config) -> Iterable[ConnectorAdapter]:  # type: ignore[empty-body]
    """Connectors that `prefill_decode(…, connector=Connector(NAME))` may name."""


def pytest_llmperf_kinds(config: pytest.Config) -> Iterable[HardwareKind]:  # type: ignore[empty-body]
    """Hardware kinds: markers, cases of `by_kind`, and GPUs that the emulator stands in for."""


def pytest_llmperf_metrics(config: pytest.Config) -> Iterable[AddedMetric]:  # type: ignore[empty-body]
    """Metrics that SLOs, claims and baselines may name."""


def pytest_llmperf_workloads(config: pytest.Config) -> Iterable[AddedWorkload]:  # type: ignore[empty-body]
    """Builders that `--workload` may name."""


def pytest_llmperf_sinks(config: pytest.Config) -> Iterable[Sink]:  # type: ignore[empty-body]
    """Formats that `--llmperf-export` may name."""
