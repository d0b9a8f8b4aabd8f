"""A measurement needs the real clock: a library that replaces it is named."""

import datetime
import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import pytest

from pytest_llmperf.clock import SystemClock, VirtualClock, at_once, require_real_clock
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


def test_calls_at_once_are_made_beside_each_other():
    both = threading.Barrier(2, timeout=20)
    assert sorted(at_once(SystemClock(), [both.wait, both.wait])) == [0, 1]


def test_calls_at_once_end_before_the_error_of_one_is_raised():
    first_failed, ended = threading.Event(), []

    def fail():
        first_failed.set()
        raise UsageError("first")

    def end_later():
        first_failed.wait(60)
        time.sleep(0.05)
        ended.append(True)

    with pytest.raises(UsageError, match="first"):
        at_once(SystemClock(), [fail, end_later])
    assert ended == [True]


def test_calls_at_once_begin_at_one_virtual_time_and_end_with_the_longest():
    clock, begun_ns = VirtualClock(), []
    clock.sleep_ns(100)

    def lasting(duration_ns):
        def call():
            begun_ns.append(clock.now_ns())
            clock.sleep_ns(duration_ns)
        return call

    at_once(clock, [lasting(5), lasting(30), lasting(7)])
    assert (begun_ns, clock.now_ns()) == ([100, 100, 100], 130)
