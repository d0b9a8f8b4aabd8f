"""A replay whose load processes run on other hosts: one schedule, clocks compared, recordings streamed here."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from pytest_llmperf.errors import LlmperfError, LoadError
from pytest_llmperf.load.cores import Cores
from pytest_llmperf.load.host_clock import ClockExchange, HostClock
from pytest_llmperf.load.host_load import MOST_BYTES, ProcessState
from pytest_llmperf.load.pipe_protocol import pack_plan
from pytest_llmperf.load.recording import Recording
from pytest_llmperf.load.sharding import in_our_time, replay_of
from pytest_llmperf.load.transport import RecordingProcess
from pytest_llmperf.model.exchange import HostReport, Replay
from pytest_llmperf.model.plan import LoadPlan

_START_DELAY_NS = 500_000_000  # time zero lies so far ahead: the slowest host hears of it before
_EXCHANGES = 40                # before and after a replay; five a round during it
_ROUND_S = 0.25                # load processes report their progress as often


class Host(Protocol):
    """A load host, reached by whatever means: the methods of `HostLoad`, and a name for messages.

    Each method raises `LoadError`, which names the host, if the host does not answer.
    """

    @property
    def name(self) -> str: ...
    def now_ns(self) -> int: ...
    def begin(self, plans: Sequence[bytes], load_cpus: str) -> Cores: ...
    def start(self, started_ns: int) -> None: ...
    def cancel(self) -> None: ...
    def states(self, positions: Sequence[int]) -> list[ProcessState]: ...
    def end(self) -> None: ...


class HostedProcess(RecordingProcess):
    """A load process of another host, with a copy of its recording here."""

    complete = False
    copied_bytes = 0

    def take(self, state: ProcessState) -> None:
        """Note the state and append the new bytes of the recording."""
        if state.data:
            with self.recording.open("ab") as file:
                file.write(state.data)
            self.copied_bytes += len(state.data)
        self.last, self.ready, self.complete, self.hung = state.last, state.ready, state.complete, state.hung
        self.status, self.error_line = state.status or 0, state.error_line


class _Follower:
    """Drives one host in a thread of its own, from the first clock exchange to the last.

    Attributes:
        problem: why the host cannot be followed; None if it can.
        exchanges: the clock exchanges so far.
        cores: the CPUs of the load processes; None before they run.
        started_ns: agreed start of the schedule; None before all hosts are ready.
    """

    def __init__(self, host: Host, plans: Sequence[LoadPlan], folder: Path, load_cpus: str, number: int) -> None:
        self.host = host
        self.processes = [HostedProcess(plan, folder / f"{number}-{position}", host.name)
                          for position, plan in enumerate(plans)]
        self.problem: LlmperfError | None = None
        self.exchanges: list[ClockExchange] = []
        self.cores: Cores | None = None
        self._load_cpus = load_cpus
        self.started_ns: int | None = None
        self._cancelled = self._abandoned = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"llmperf-host-{number}", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def start(self, started_ns: int) -> None:
        """Have the schedule start at that time of our clock."""
        self.started_ns = started_ns
        self._wake.set()

    def cancel(self) -> None:
        self._cancelled = True
        self._wake.set()

    def abandon(self) -> None:
        """End the host's load processes, whatever they still do."""
        self._abandoned = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def works(self) -> bool:
        return self._thread.is_alive()

    @property
    def ready(self) -> bool:
        return all(process.ready for process in self.processes)

    @property
    def clock(self) -> HostClock:
        return HostClock(self.exchanges)

    def _run(self) -> None:
        try:
            self._compare_clocks(_EXCHANGES)
            packed = [pack_plan(process.plan) for process in self.processes]
            self.cores = self.host.begin(packed, self._load_cpus)
            self._follow()
            self._compare_clocks(_EXCHANGES)
        except LlmperfError as problem:
            self.problem = problem
        except OSError as error:
            self.problem = LoadError(f"Answers cannot be recorded: {error}. Free space there, or set TMPDIR to another "
                                     "folder.")
        finally:
            with suppress(LlmperfError):
                self.host.end()

    def _follow(self) -> None:
        started = cancelled = False
        while not (self._abandoned or all(process.complete for process in self.processes)):
            if self.started_ns is not None and not started:
                self.host.start(self.clock.host_ns(self.started_ns))
                started = True
            if self._cancelled and not cancelled:
                self.host.cancel()
                cancelled = True
            self._compare_clocks(5)
            states = self.host.states([process.copied_bytes for process in self.processes])
            for process, state in zip(self.processes, states, strict=True):
                process.take(state)
            if not any(len(state.data) == MOST_BYTES for state in states):  # else the host has more
                self._wake.wait(_ROUND_S)
                self._wake.clear()

    def _compare_clocks(self, exchanges: int) -> None:
        for _ in range(exchanges):
            if self._abandoned:
                return
            sent_ns = time.monotonic_ns()
            host_ns = self.host.now_ns()
            self.exchanges.append(ClockExchange(sent_ns, host_ns, time.monotonic_ns()))


class LoadHosts:
    """The load processes of several hosts, driven as `LoadProcesses` are.

    Args:
        hosts: where they run.
        shares: the parts of the plan, at least one for each host that is used.
        folder: for copies of the recordings.
        load_cpus: see the setting.
    """

    def __init__(self, hosts: Sequence[Host], shares: Sequence[LoadPlan], folder: Path, load_cpus: str) -> None:
        self._followers = [
            _Follower(host, plans, folder, load_cpus, number)
            for number, host in enumerate(hosts)
            if (plans := shares[number :: len(hosts)])
        ]
        self.workers = [process for follower in self._followers for process in follower.processes]
        self._started = self._cancelled = False

    def begin(self) -> None:
        """Compare clocks with every host and start its load processes."""
        for follower in self._followers:
            follower.begin()

    def wait(self, timeout_ms: int) -> bool:
        """See `LoadProcesses.wait`."""
        time.sleep(timeout_ms / 1000)
        if any(follower.problem for follower in self._followers):
            self.cancel()  # what the others still find out could not be used
        elif not self._started and all(follower.ready for follower in self._followers):
            self._started = True
            started_ns = time.monotonic_ns() + _START_DELAY_NS
            for follower in self._followers:
                follower.start(started_ns)
        return any(follower.works for follower in self._followers)

    def cancel(self) -> None:
        """See `LoadProcesses.cancel`."""
        if not self._cancelled:
            self._cancelled = True
            for follower in self._followers:
                follower.cancel()

    def end(self) -> None:
        """Check that every host was followed to its end.

        Raises:
            LoadError: a host died, or its clock was set.
        """
        for follower in self._followers:
            if follower.problem is not None:
                done = sum(process.last.done for process in follower.processes)
                requests = sum(len(process.plan.requests) for process in follower.processes)
                raise LoadError(f"{follower.problem} It had finished {done} of its {requests} requests. Start Ray "
                                "on that host again, or take the host out of the cluster.")
        for follower in self._followers:
            if (contradiction_ns := follower.clock.contradiction_ns) > 0:
                raise LoadError(
                    f"The clock of load host {follower.host.name} cannot be compared with the clock of this machine: "
                    f"it moved by {contradiction_ns / 1e6:.3g} ms more than a drift explains, so it was set, or a "
                    "machine stood still. Run the test again. If the message repeats, look at `chronyc tracking` there."
                )

    def kill(self) -> None:
        """End all at once."""
        for follower in self._followers:
            follower.abandon()

    def replay(self, recordings: Sequence[Recording], plan: LoadPlan) -> Replay:
        """See `LoadProcesses.replay`."""
        place_of = {id(worker): recording for worker, recording in zip(self.workers, recordings, strict=True)}
        converted: list[Recording] = []
        reports: list[HostReport] = []
        for follower in self._followers:
            clock, places = follower.clock, [place_of[id(process)] for process in follower.processes]
            reports.append(_report(follower, clock, places))
            converted += [in_our_time(recording, clock) for recording in places]
        return replay_of(converted, plan, self._cores(), reports)

    def _cores(self) -> Cores:
        cores = [follower.cores for follower in self._followers if follower.cores is not None]
        return Cores(tuple(cpu for each in cores for cpu in each.load), (), all(each.reserved for each in cores))


@contextmanager
def hosted_load(
    hosts: Sequence[Host], shares: Sequence[LoadPlan], folder: Path, load_cpus: str
) -> Iterator[LoadHosts]:
    """Load processes on these hosts while a block runs; ended where the block fails."""
    load = LoadHosts(hosts, shares, folder, load_cpus)
    try:
        load.begin()
        yield load
    except BaseException:
        load.kill()
        raise
    load.end()


def _report(follower: _Follower, clock: HostClock, recordings: Sequence[Recording]) -> HostReport:
    begin_ns = min(recording.started_ns for recording in recordings if recording.started_ns is not None)
    end_ns = max(recording.end.ended_ns for recording in recordings if recording.end is not None)
    drift = clock.drift_ppm
    return HostReport(
        name=follower.host.name,
        processes=len(recordings),
        requests=sum(len(process.plan.requests) for process in follower.processes),
        start_delay_ns=clock.our_ns(begin_ns) - (follower.started_ns or clock.our_ns(begin_ns)),
        clock_offset_ns=clock.offset_ns(begin_ns),
        clock_error_ns=clock.largest_error_ns(begin_ns, end_ns),
        drift_ppm=None if drift is None else drift[0],
        drift_error_ppm=None if drift is None else drift[1],
        cpu_ns=sum(recording.end.cpu_ns for recording in recordings if recording.end is not None),
    )
