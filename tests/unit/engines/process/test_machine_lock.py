"""The lock of a machine that all workers of one session may hold together."""

import pytest

from pytest_llmperf.engines.process.machine_lock import MachineLock
from pytest_llmperf.errors import HardwareBusy


def lock(path, session, *, shared=True):
    return MachineLock(path, "this machine", session, 0, lambda _status: None, shared=shared)


def test_workers_of_one_session_hold_the_lock_together_until_the_last_one_ends(tmp_path):
    path = tmp_path / "machine.lock"
    first, second, stranger = lock(path, "a"), lock(path, "a"), lock(path, "b")
    first.take(lambda: None)
    second.take(lambda: None)
    first.end()
    for other in (stranger, lock(path, "b", shared=False)):
        with pytest.raises(HardwareBusy, match="a of process"):
            other.take(lambda: None)
    second.end()
    assert not path.exists()
    stranger.take(lambda: None)
    assert stranger.is_ours
    stranger.end()


def test_lock_that_is_not_shared_keeps_workers_of_the_same_session_out(tmp_path):
    whole, part = lock(tmp_path / "lock", "a", shared=False), lock(tmp_path / "lock", "b")
    whole.take(lambda: None)
    with pytest.raises(HardwareBusy):
        part.take(lambda: None)
    whole.end()
