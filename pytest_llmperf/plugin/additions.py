"""What a project adds by its settings and by the hooks of its `conftest.py`, known until the session ends."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from pytest_llmperf.doors import Door
from pytest_llmperf.errors import LlmperfError
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.plugin.options import has_settings
from pytest_llmperf.plugin.state import STATE

CONFTEST = "conftest.py"
ROWS = "[tool.llmperf.kinds]"


def know_additions(config: pytest.Config) -> None:
    """Register hardware kinds of the settings, and what the hooks return.

    Raises:
        pytest.UsageError: a row or an object is wrong. The message says which one.
    """
    known, marked = ExitStack(), tuple(GPU_KINDS)  # the kinds of packages have their marker lines
    config.add_cleanup(known.close)
    try:
        if has_settings(config.rootpath) and (kinds := config.stash[STATE].settings.kinds):
            known.enter_context(GPU_KINDS.added(kinds.values(), ROWS))
        for name in ("kinds", "engines", "routers", "connectors", "metrics", "workloads", "sinks"):
            caller = getattr(config.hook, f"pytest_llmperf_{name}")
            if caller.get_hookimpls():
                values = [value for returned in reversed(caller(config=config)) for value in returned]
                known.enter_context(_door(name).added(values, CONFTEST))
    except LlmperfError as error:
        raise pytest.UsageError(str(error)) from error
    for kind in tuple(GPU_KINDS)[len(marked):]:
        config.addinivalue_line("markers", f"{kind}: runs on this GPU")


def _door(name: str) -> Door[Any]:
    from pytest_llmperf.engines.adapters import ENGINES
    from pytest_llmperf.engines.connectors.door import CONNECTORS
    from pytest_llmperf.engines.routers.door import ROUTERS
    from pytest_llmperf.metrics.registry import METRICS
    from pytest_llmperf.report.export import SINKS
    from pytest_llmperf.workload.expression import WORKLOADS

    doors: dict[str, Door[Any]] = {
        "kinds": GPU_KINDS, "engines": ENGINES, "routers": ROUTERS, "connectors": CONNECTORS, "metrics": METRICS,
        "workloads": WORKLOADS, "sinks": SINKS,
    }
    return doors[name]
