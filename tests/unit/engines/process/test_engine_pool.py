"""Sharing servers: one at a time, started when needed, and no failure that stays for ever."""

import itertools
import os
import threading
from types import SimpleNamespace

import httpx
import pytest
from filelock import FileLock

from pytest_llmperf.clock import VirtualClock
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.endpoint.spec import endpoint
from pytest_llmperf.engines.memory.shares import Shares
from pytest_llmperf.engines.process.launch import stop_after
from pytest_llmperf.engines.process.pool import EnginePool, lock_of_this_machine
from pytest_llmperf.engines.spec import vllm
from pytest_llmperf.errors import (
    EngineError,
    ExitedEarly,
    HardwareBusy,
    InfrastructureError,
    ServerDied,
    SpecError,
    StopFailed,
)
from pytest_llmperf.model.engine import Endpoint
from pytest_llmperf.process import tree
from pytest_llmperf.process.leftovers import Leftover, Sweep, Tag
from pytest_llmperf.testing.waiting import until

ONE, TWO = vllm("one"), vllm("two")


class FakeLauncher:
    """Starts servers without processes; `failure` is raised once instead."""

    def __init__(self, make_server, make_process):
        self.settings = Settings()
        self.clock = SimpleNamespace(now_ns=lambda: 0)
        self.make_server, self.make_process = make_server, make_process
        self.lines, self.kinds, self.failure, self.unknown_flag = [], [], None, None
        self.progress = self.lines.append

    def check(self, spec):
        if spec.model == "nosuch":
            raise SpecError("no model 'nosuch'")
        if self.unknown_flag in dict(spec.flags):
            raise SpecError(f"vllm does not know {self.unknown_flag}.")

    def start(self, spec, start_id, lmcache=None, replicas=None):
        self.kinds.append(spec.kind)
        if self.failure is not None:
            error, self.failure = self.failure, None
            raise error
        process = None if isinstance(spec, Endpoint) else self.make_process()
        return self.make_server(spec, process=process, start_id=start_id, lmcache=lmcache)

    def start_together(self, specs, first_id):
        return [self.start(spec, first_id + number) for number, spec in enumerate(specs)]


@pytest.fixture
def launcher(make_server, fake_process):
    return FakeLauncher(make_server, type(fake_process))


@pytest.fixture
def pool(launcher, tmp_path):
    with EnginePool(launcher, tmp_path / "lock", lambda _clock: Sweep()) as pool:
        yield pool


def test_an_equal_spec_shares_and_another_one_replaces(pool):
    first = pool.acquire(ONE)
    assert pool.acquire(vllm("one")) is first
    second = pool.acquire(TWO)
    assert first.unit.process.stopped == 1
    assert pool.runs(TWO)
    assert not pool.runs(ONE)
    assert (second.start_id, pool.starts) == (2, 2)


def test_planted_server_is_shared_under_requested_spec(launcher, tmp_path):
    with EnginePool(launcher, tmp_path / "lock", lambda _clock: Sweep(), plant=lambda _spec: TWO) as pool:
        server = pool.acquire(ONE)
        assert server.spec == TWO
        assert pool.runs(ONE)
        assert pool.acquire(ONE) is server


def shared(specs, in_turn=False):
    """Each spec with a third of the memory."""
    flagged = tuple(spec.with_flags(gpu_memory_utilization=0.3) for spec in specs)
    return "sharing suffices" if in_turn else Shares(flagged, "each has a third")


@pytest.fixture
def sharing_pool(launcher, tmp_path):
    with EnginePool(launcher, tmp_path / "lock", lambda _clock: Sweep(), share_memory=shared) as pool:
        yield pool


def test_specs_that_fit_start_together_and_stay(sharing_pool):
    first = sharing_pool.acquire(ONE, beside=[TWO])
    two = sharing_pool.acquire(TWO, beside=[ONE])
    assert (first.spec, two.spec) == shared([ONE, TWO]).specs
    assert (first.requested_spec, two.requested_spec) == (ONE, TWO)
    assert [first.start_id, two.start_id, sharing_pool.starts] == [1, 2, 2]
    assert [first.siblings, two.siblings] == [1, 1]
    assert sharing_pool.acquire(ONE, beside=[TWO]) is first
    assert not first.unit.process.stopped
    assert set(sharing_pool.pids()) == {*first.unit.pids(), *two.unit.pids()}


def test_server_that_ran_alone_stops_before_its_spec_starts_beside_another(sharing_pool):
    alone = sharing_pool.acquire(ONE)
    assert alone.spec == ONE
    assert sharing_pool.acquire(ONE, beside=[TWO]) is not alone
    assert alone.unit.process.stopped == 1


def test_spec_that_runs_beside_a_sibling_starts_anew_alone(sharing_pool):
    """A sibling and the share of the memory are conditions, so the next test does not inherit them."""
    shared_server = sharing_pool.acquire(ONE, beside=[TWO])
    alone = sharing_pool.acquire(ONE)
    assert (alone.spec, alone.siblings) == (ONE, 0)
    assert shared_server.unit.process.stopped == 1


class SlowLauncher(FakeLauncher):
    """Each start takes 60 s of virtual time. Servers start together only if `at_once`."""

    def __init__(self, make_server, make_process, *, at_once):
        super().__init__(make_server, make_process)
        self.clock, self.at_once = VirtualClock(), at_once

    def start(self, spec, start_id, lmcache=None, replicas=None):
        launched_ns = self.clock.now_ns()
        server = super().start(spec, start_id, lmcache)
        server.unit.launched_ns = launched_ns
        self.clock.sleep_ns(60 * 10**9)
        return server

    def start_together(self, specs, first_id):
        servers = super().start_together(specs, first_id)
        for server in servers if self.at_once else ():
            server.unit.launched_ns = servers[-1].unit.launched_ns
        return servers


@pytest.mark.parametrize(("at_once", "kind", "begun_s"), [(False, "h200", 210), (True, "h200", 120),
                                                          (False, "cpu", 120)])
def test_servers_of_unequal_age_are_measured_from_steady_age_on(make_server, fake_process, tmp_path, at_once, kind,
                                                                begun_s):
    launcher = SlowLauncher(make_server, type(fake_process), at_once=at_once)
    with EnginePool(launcher, tmp_path / "lock", lambda _clock: Sweep(), share_memory=shared,
                    steady_age_s=150.0) as pool:
        server = pool.acquire(ONE.on(kind), beside=[TWO])
        assert launcher.clock.now_ns() == begun_s * 10**9
        pool.wait_steady([server])  # the first server is 60 s older than the second one
        assert launcher.clock.now_ns() == max(begun_s, 210 if at_once else 0) * 10**9


def test_fresh_start_ends_siblings_and_has_the_whole_memory(sharing_pool):
    two = sharing_pool.acquire(TWO, beside=[ONE])
    fresh = sharing_pool.acquire(ONE, beside=[TWO], fresh=True)
    assert fresh.spec == ONE
    assert two.unit.process.stopped == 1
    assert not sharing_pool.runs(TWO)


def test_dead_sibling_makes_both_start_anew(sharing_pool):
    first = sharing_pool.acquire(ONE, beside=[TWO])
    sharing_pool.acquire(TWO, beside=[ONE]).unit.process.ended = "exit code 1"
    assert sharing_pool.acquire(ONE, beside=[TWO]) is not first
    assert sharing_pool.starts == 4


def test_specs_too_large_together_run_in_sequence_and_reason_is_reported(launcher, tmp_path, message):
    with EnginePool(launcher, tmp_path / "lock", lambda _clock: Sweep(),
                    share_memory=lambda _specs, _in_turn: "they do not fit") as pool:
        assert not pool.lives_beside(ONE, [TWO])
        first = pool.acquire(ONE, beside=[TWO])
        pool.acquire(TWO, beside=[ONE])
        assert first.unit.process.stopped == 1
        message(*(note.text for note in launcher.lines))


def test_two_of_three_specs_run_together_where_three_do_not_fit(launcher, tmp_path):
    def two_fit(specs, in_turn):
        return "the GPU is too small" if len(specs) > 2 else shared(specs, in_turn)

    three = vllm("three")
    with EnginePool(launcher, tmp_path / "lock", lambda _clock: Sweep(), share_memory=two_fit) as pool:
        pool.acquire(ONE, beside=[ONE, TWO, three])
        assert (pool.runs(ONE), pool.runs(TWO), pool.runs(three)) == (True, True, False)
        assert pool.lives_beside(ONE, [TWO])
        assert not pool.lives_beside(ONE, [TWO, three])


def in_turn_only(specs, in_turn):
    flagged = tuple(spec.with_flags(enable_sleep_mode=True) for spec in specs)
    return Shares(flagged, "one at a time") if in_turn else "the GPU is too small"


@pytest.fixture
def turns(launcher, tmp_path, fake_engine):
    """A pool of servers that take turns. The engine notes which server sleeps by the order of its requests."""
    fake_engine.answers |= {
        "/sleep": httpx.Response(200, json={"status": "sleeping"}),
        "/wake_up": httpx.Response(200, json={"status": "awake"}),
    }

    def is_sleeping(request):
        state = fake_engine.paths[-2] == "/sleep"
        return httpx.Response(200, json={"is_sleeping": state})

    fake_engine.answers["/is_sleeping"] = is_sleeping
    with EnginePool(launcher, tmp_path / "lock", lambda _clock: Sweep(), share_memory=in_turn_only) as pool:
        yield pool


def test_servers_that_take_turns_start_once_and_sleep_in_turn(turns, launcher, message):
    assert turns.lives_beside(ONE, [TWO])
    first = turns.acquire(ONE, beside=[TWO])
    assert [(server.spec.model, server.control.asleep) for server in (first, turns._servers[TWO])] == [
        ("one", False), ("two", True)]
    first.warmed_for.add("a workload")
    two = turns.acquire(TWO, beside=[ONE])
    assert (first.control.asleep, two.control.asleep) == (True, False)
    assert not first.warmed_for
    assert turns.acquire(TWO, beside=[ONE]) is two
    turns.wake(first)
    assert (first.control.asleep, two.control.asleep) == (False, True)
    assert turns.starts == 2
    assert [first.takes_turns, first.siblings] == [True, 1]
    message(*(note.text for note in launcher.lines))


def test_engine_without_sleep_flag_runs_in_sequence_and_reason_is_reported(turns, launcher, message):
    launcher.unknown_flag = "enable_sleep_mode"
    assert not turns.lives_beside(ONE, [TWO])
    assert turns.acquire(ONE, beside=[TWO]).spec == ONE
    message(*(note.text for note in launcher.lines))


def test_plan_of_a_session_does_not_change(launcher, tmp_path):
    """A second start has the flags of the first, whatever was measured meanwhile."""
    sizes = itertools.count(1)

    def growing(specs, _in_turn):
        size = next(sizes)
        return Shares(tuple(spec.with_flags(kv_cache_memory_bytes=size) for spec in specs))

    with EnginePool(launcher, tmp_path / "lock", lambda _clock: Sweep(), share_memory=growing) as pool:
        first = [pool.acquire(ONE, beside=[TWO]).spec, pool.acquire(TWO, beside=[ONE]).spec]
        pool.release()
        assert [pool.acquire(ONE, beside=[TWO]).spec, pool.acquire(TWO, beside=[ONE]).spec] == first


def test_start_callback_runs_while_started_server_is_awake(launcher, tmp_path, turns):
    notes = []
    turns._on_start = lambda spec, server: notes.append((spec, server.spec.model, server.control.asleep, spec.kind))
    turns.acquire(ONE.on("h200"), beside=[TWO])
    assert notes == [(TWO, "two", False, "h200"), (ONE, "one", False, "h200")]


def interrupted(*_):
    raise KeyboardInterrupt


def test_interrupt_after_start_leaves_server_to_pool(launcher, tmp_path):
    with EnginePool(launcher, tmp_path / "lock", lambda _clock: Sweep(), on_start=interrupted) as pool:
        with pytest.raises(KeyboardInterrupt):
            pool.acquire(ONE)
        assert pool.runs(ONE)
        server = pool._servers[ONE]
    assert server.unit.process.stopped == 1


def test_server_of_interrupted_sleep_is_started_anew(turns, fake_engine):
    first = turns.acquire(ONE, beside=[TWO])
    fake_engine.answers["/sleep"] = interrupted
    with pytest.raises(KeyboardInterrupt):
        turns.acquire(TWO, beside=[ONE])
    fake_engine.answers["/sleep"] = httpx.Response(200, json={"status": "sleeping"})
    assert turns.acquire(ONE, beside=[TWO]) is not first
    assert first.unit.process.stopped == 1


def test_process_stops_after_failed_close_of_client(pool, monkeypatch):
    def broken():
        raise RuntimeError("the connection pool is locked")

    server = pool.acquire(ONE)
    with monkeypatch.context() as patched:
        patched.setattr(server.control.client, "close", broken)
        with pytest.raises(RuntimeError):
            server.stop(0)
    assert server.unit.process.stopped == 1


def test_failed_sleep_stops_both_servers_and_starts_the_asked_server_alone(turns, launcher, fake_engine, message):
    fake_engine.answers["/sleep"] = httpx.Response(500, text="not supported")
    first = turns.acquire(ONE, beside=[TWO])
    assert (first.spec, first.control.asleep, first.siblings) == (ONE, False, 0)
    assert not turns.lives_beside(ONE, [TWO])
    message(*(note.text for note in launcher.lines))
    two = turns.acquire(TWO, beside=[ONE])
    assert two.spec == TWO
    assert first.unit.process.stopped == 1


def test_server_that_does_not_wake_up_is_started_anew_and_alone(turns, fake_engine):
    first = turns.acquire(ONE, beside=[TWO])
    turns.acquire(TWO, beside=[ONE])
    fake_engine.answers["/wake_up"] = httpx.Response(500)
    with pytest.raises(EngineError, match="does not wake up"):
        turns.acquire(ONE, beside=[TWO])
    fake_engine.answers["/wake_up"] = httpx.Response(200)
    assert turns.acquire(ONE, beside=[TWO]).spec == ONE
    assert first.unit.process.stopped == 1


def test_fresh_acquire_starts_a_new_server(pool):
    first = pool.acquire(ONE)
    assert pool.acquire(ONE, fresh=True) is not first
    assert first.unit.process.stopped == 1


class FakeLMCache:
    stopped = 0
    hangs = False

    def __init__(self, process):
        self.process = process

    def check_alive(self):
        if self.process.ended is not None:
            raise ServerDied(f"The LMCache server died: {self.process.ended}.")

    def stop(self, grace_s):
        self.stopped += 1


@pytest.fixture
def lmcache(fake_process):
    return FakeLMCache(fake_process)


@pytest.mark.parametrize(("keep", "spec", "expected"), [(True, ONE, True), (False, ONE, False), (True, TWO, False)])
def test_a_fresh_start_may_take_over_lmcache(pool, lmcache, keep, spec, expected):
    first = pool.acquire(ONE)
    first.unit.lmcache = lmcache
    second = pool.acquire(spec, fresh=True, keep_lmcache=keep)
    assert first.unit.process.stopped == 1
    assert (second.unit.lmcache is lmcache) is expected
    assert lmcache.stopped == (0 if expected else 1)
    pool.close()
    assert lmcache.stopped == 1


@pytest.mark.parametrize("fresh", [True, False])
def test_dead_lmcache_server_is_not_reused_and_its_death_is_reported(pool, launcher, lmcache, fresh, message):
    pool.acquire(ONE).unit.lmcache = lmcache
    lmcache.process.ended = "signal 9 (SIGKILL)"
    assert pool.acquire(ONE, fresh=fresh, keep_lmcache=True).unit.lmcache is None
    assert lmcache.stopped == 1
    message(*(note.text for note in launcher.lines))


@pytest.mark.parametrize("fresh", [True, False])
def test_an_lmcache_that_hangs_is_not_handed_on(pool, launcher, lmcache, fresh):
    first = pool.acquire(ONE)
    first.unit.lmcache, lmcache.hangs = lmcache, True
    assert pool.acquire(ONE, fresh=fresh, keep_lmcache=True).unit.lmcache is None
    assert (first.unit.process.stopped, lmcache.stopped) == (1, 1)
    assert [note.text for note in launcher.lines] == ["vllm('one') hangs. Starting it again."]


def test_an_lmcache_that_was_kept_ends_where_the_start_fails(pool, launcher, lmcache):
    pool.acquire(ONE).unit.lmcache = lmcache
    launcher.failure = ExitedEarly("exit code 2")
    with pytest.raises(ExitedEarly):
        pool.acquire(ONE, fresh=True, keep_lmcache=True)
    assert lmcache.stopped == 1


def test_unknown_model_keeps_live_server_running(pool):
    first = pool.acquire(ONE)
    with pytest.raises(SpecError, match="nosuch"):
        pool.acquire(vllm("nosuch"))
    assert pool.acquire(ONE) is first
    assert first.unit.process.stopped == 0


def test_other_hardware_kind_has_a_separate_server(pool, launcher):
    first = pool.acquire(ONE.on("h200"))
    assert pool.acquire(ONE.on("h200")) is first
    assert pool.acquire(ONE.on("cpu")) is not first
    assert launcher.kinds == ["h200", "cpu"]


def test_next_start_after_a_failed_start_succeeds(pool, launcher):
    old = pool.acquire(TWO)
    launcher.failure = ExitedEarly("exit code 2")
    with pytest.raises(ExitedEarly):
        pool.acquire(ONE)
    assert old.unit.process.stopped == 1
    assert not pool.runs(ONE)
    assert pool.acquire(ONE).spec == ONE


def test_server_that_died_between_tests_is_reported_and_started_again(pool, launcher):
    first = pool.acquire(ONE)
    first.unit.process.ended = "signal 9 (SIGKILL)"
    assert pool.acquire(ONE) is not first
    (note,) = launcher.lines
    assert "signal 9" in note.text
    assert "again" in note.text


def test_endpoint_and_live_server_are_kept_together(pool):
    server = pool.acquire(ONE)
    there = pool.acquire(endpoint("http://h:1", model="m"))
    assert pool.acquire(endpoint("http://h:1", model="m")) is there
    assert pool.runs(ONE)
    assert server.unit.process.stopped == 0


THERE, ELSEWHERE = endpoint("http://h:1", model="m"), endpoint("http://h:2", model="m")


class Worker(threading.Thread):
    """A second worker of this session, with a pool of its own. The worker acquires the given specs in sequence."""

    def __init__(self, pool, *specs):
        super().__init__(daemon=True)
        self.pool, self.specs, self.got = pool, specs, []
        self.start()

    def run(self):
        with self.pool:
            for spec in self.specs:
                self.got.append(self.pool.acquire(spec))


def pool_of_a_worker(launcher, tmp_path):
    return EnginePool(launcher, tmp_path / "lock", lambda _clock: Sweep(), session="this")


def waits(launcher, what):
    until(lambda: f"another worker uses {what}" in [getattr(line, "reason", "") for line in launcher.lines])


def test_workers_lock_each_endpoint_separately(launcher, tmp_path):
    with pool_of_a_worker(launcher, tmp_path) as pool:
        pool.acquire(THERE)
        other = Worker(pool_of_a_worker(launcher, tmp_path), ELSEWHERE, THERE)
        waits(launcher, "http://h:1")
        assert [server.spec for server in other.got] == [ELSEWHERE]
    other.join(60)
    assert [server.spec for server in other.got] == [ELSEWHERE, THERE]


def test_workers_that_want_swapped_servers_do_not_deadlock(launcher, tmp_path):
    with pool_of_a_worker(launcher, tmp_path) as pool:
        pool.acquire(ONE)
        other = Worker(pool_of_a_worker(launcher, tmp_path), THERE, TWO)
        waits(launcher, "this machine")
        assert pool.acquire(THERE).spec == THERE
        assert other.got[0].unit.stopped
    other.join(60)
    assert [server.spec for server in other.got] == [THERE, TWO]


def test_lock_that_cannot_be_created_is_an_error_with_path(launcher, tmp_path):
    (tmp_path / "lock").mkdir()
    with EnginePool(launcher, tmp_path / "lock", lambda _clock: Sweep()) as pool:
        with pytest.raises(InfrastructureError, match=r"lock cannot be kept: .*TMPDIR"):
            pool.acquire(ONE)
        (tmp_path / "lock").rmdir()
        assert pool.acquire(ONE).spec == ONE


def test_restarted_endpoint_is_queried_and_warmed_again(pool, launcher, fake_engine):
    def began(at_s):
        page = f'process_start_time_seconds {at_s}\nvllm:cache_config_info{{block_size="{at_s}"}} 1\n'
        fake_engine.answers["/metrics"] = httpx.Response(200, text=page)

    began(16)
    first = pool.acquire(THERE)
    assert first.facts["block_size"] == "16"
    first.warmed_for.add("a workload")
    assert pool.acquire(THERE) is first
    began(32)
    second = pool.acquire(THERE)
    assert (second.facts["block_size"], second.warmed_for, second.start_id) == ("32", set(), 2)
    assert pool.acquire(THERE) is second
    assert "was started again" in launcher.lines[0].text


def test_a_file_where_locks_should_be_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert lock_of_this_machine() == tmp_path / f"llmperf-{os.getuid()}" / "machine.lock"
    lock_of_this_machine().parent.rmdir()
    (tmp_path / f"llmperf-{os.getuid()}").touch()
    with pytest.raises(InfrastructureError, match=r"is not a folder of uid \d+ that nobody else may enter"):
        lock_of_this_machine()


def test_an_endpoint_cannot_be_fresh(pool):
    with pytest.raises(SpecError, match="cannot be started anew"):
        pool.acquire(endpoint("http://h:1", model="m"), fresh=True)


def test_close_stops_everything_and_gives_the_machine_back(pool, launcher, tmp_path):
    server = pool.acquire(ONE)
    pool.close()
    assert server.unit.process.stopped == 1
    with EnginePool(launcher, tmp_path / "lock", lambda _clock: Sweep()) as other:
        assert other.acquire(ONE).spec == ONE
        assert not launcher.lines  # it did not have to wait


def test_a_stop_that_fails_does_not_hide_why_the_start_failed(make_server, fake_process):
    fake_process.stop = survives
    error = ExitedEarly("exit code 2")
    stop_after(error, make_server(ONE, process=fake_process), 1.0)
    assert "pid 7" in error.__notes__[0]


LEFT = Leftover(tree.Identity(4242, 1), "VLLM::EngineCore", Tag.parse("0-4000-1-abc"))


@pytest.mark.parametrize("left", [Sweep(pending=(LEFT,)), Sweep(survivors=(LEFT,))], ids=["pending", "survivors"])
def test_leftover_of_earlier_run_prevents_server_start(launcher, tmp_path, left):
    sweeps = [left, left, Sweep()]
    launcher.clock = SimpleNamespace(now_ns=itertools.count(0, 61 * 10**9).__next__)
    with EnginePool(launcher, tmp_path / "lock", lambda _clock: sweeps.pop(0)) as pool:
        for _ in range(2):
            with pytest.raises(HardwareBusy, match=r"VLLM::EngineCore \(pid 4242"):
                pool.acquire(ONE)
        assert pool.acquire(ONE).spec == ONE


def survives(_grace_s):
    raise StopFailed("still alive after SIGKILL: python (pid 7)")


def test_server_that_survived_stop_prevents_server_start(pool):
    first = pool.acquire(ONE)
    ends, first.unit.process.stop = first.unit.process.stop, survives
    with pytest.raises(StopFailed):
        pool.acquire(TWO)
    for spec in (ONE, TWO):
        with pytest.raises(HardwareBusy, match=r"vllm\('one'\) was stopped and is still on this machine: .*\(pid 7\)"):
            pool.acquire(spec)
    assert pool.starts == 1
    first.unit.process.stop = ends
    assert pool.acquire(TWO).spec == TWO


def test_lmcache_that_survived_stop_prevents_server_start(pool, lmcache):
    first = pool.acquire(ONE)
    first.unit.lmcache, ends, lmcache.stop = lmcache, lmcache.stop, survives
    with pytest.raises(StopFailed):
        pool.acquire(TWO)
    with pytest.raises(HardwareBusy, match="pid 7"):
        pool.acquire(TWO)
    lmcache.stop = ends
    assert pool.acquire(TWO).spec == TWO


def test_a_server_that_hangs_is_not_handed_on(pool, launcher, fake_engine):
    first = pool.acquire(ONE)
    fake_engine.answers["/v1/models"] = httpx.ReadTimeout("timed out")
    with pytest.raises(EngineError, match="hangs"):
        first.control.check_responsive(1.0)
    assert pool.acquire(ONE) is not first
    assert first.unit.process.stopped == 1
    assert "hangs" in launcher.lines[0].text


@pytest.mark.parametrize(("holder", "waits"), [("this", True), ("another", False)])
def test_worker_waits_without_limit_for_same_session_only(launcher, tmp_path, holder, waits):
    held = FileLock(tmp_path / "lock", thread_local=False)
    held.acquire()
    (tmp_path / "lock").write_text(f"{holder} of process 7")
    ending = threading.Timer(2.5, held.release)
    ending.start()
    with EnginePool(launcher, tmp_path / "lock", lambda _clock: Sweep(), session="this", lock_timeout_s=1) as pool:
        if waits:
            assert pool.acquire(ONE).spec == ONE
            assert (tmp_path / "lock").read_text() == f"this of process {os.getpid()}"
        else:
            with pytest.raises(HardwareBusy, match="another of process 7"):
                pool.acquire(ONE)
    ending.join()
    assert f"another {'worker' if waits else 'run'} uses this machine" in [line.reason for line in launcher.lines]
