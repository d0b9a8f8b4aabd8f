"""One wait serves engines, LMCache servers and routers."""

import httpx
import pytest

from pytest_llmperf.clock import VirtualClock
from pytest_llmperf.engines.process.readiness import wait_ready
from pytest_llmperf.errors import EngineError, ExitedEarly, StartupTimeout, WrongServer


@pytest.fixture
def wait(fake_process):
    """Waits at most 10 s, of which each attempt takes 4 s."""
    clock = VirtualClock()

    def wait(*outcomes, **options):
        outcomes = iter(outcomes)

        def attempt(left_s):
            clock.sleep_ns(4 * 10**9)
            lefts_s.append(left_s)
            if (outcome := next(outcomes)) is not None:
                raise outcome

        lefts_s = []
        wait_ready(fake_process, "The router x", attempt, clock=clock, started_ns=0, timeout_s=10.0, **options)
        return lefts_s

    return wait


def test_attempts_repeat_until_one_succeeds_and_get_the_time_left(wait):
    waits_s = []
    lefts_s = wait(httpx.ConnectError("refused"), EngineError("no"), None, after_attempt=waits_s.append)
    assert lefts_s == [10.0, 6.0, 2.0]
    assert waits_s == [0.0, 4.0]


def test_timeout_names_the_last_failure(wait):
    with pytest.raises(StartupTimeout, match=r"The router x was not ready within 10 s; last: EngineError: third\."):
        wait(EngineError("first"), EngineError("second"), EngineError("third"))


def test_another_server_ends_the_wait_at_once(wait):
    with pytest.raises(WrongServer, match="not ours"):
        wait(WrongServer("not ours"), None)


@pytest.mark.parametrize("options", [{}, {"ended": ExitedEarly}])
def test_only_an_engine_that_ends_is_an_early_exit(wait, fake_process, options):
    """`perf.refuses` takes an early exit for the refusal of the engine. A router that ends refuses nothing."""
    def end(_waited_s):
        fake_process.ended = "exit code 3"

    with pytest.raises(EngineError, match=r"x ended before it was ready: exit code 3, after 4\.0 s") as error:
        wait(EngineError("no"), None, after_attempt=end, **options)
    assert isinstance(error.value, ExitedEarly) is bool(options)
