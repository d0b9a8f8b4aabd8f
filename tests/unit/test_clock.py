"""A measurement needs the real clock: a library that replaces it is named."""

import datetime
import sys
import time
from types import ModuleType, SimpleNamespace

import pytest

from pytest_llmperf.clock import require_real_clock
from pytest_llmperf.errors import UsageError


class FakeDatetime(datetime.datetime):
    """As freezegun's: of another module."""


FakeDatetime.__module__ = "freezegun.api"


def frozen(*_):
    return 0


frozen.__module__ = "freezegun.api"


@pytest.mark.parametrize(("module", "name", "value"), [
    *((time, name, frozen) for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "sleep")),
    (datetime, "datetime", FakeDatetime),
])
def test_replaced_clock_function_is_refused_with_library(monkeypatch, module, name, value):
    with monkeypatch.context() as patch:
        patch.setattr(module, name, value)
        with pytest.raises(UsageError, match=rf"freezegun replaces .*{name}, and a measurement needs the real clock"):
            require_real_clock()


def test_travelling_time_machine_is_refused(monkeypatch):
    travelling = False
    library = ModuleType("time_machine")
    library.escape_hatch = SimpleNamespace(is_travelling=lambda: travelling)
    monkeypatch.setitem(sys.modules, "time_machine", library)
    require_real_clock()
    travelling = True
    with pytest.raises(UsageError, match=r"time_machine replaces time\.time"):
        require_real_clock()
