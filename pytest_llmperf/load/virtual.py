"""Emulated engines in virtual time, in this process, and a transport that replays plans against them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager

from pytest_llmperf.clock import VirtualClock
from pytest_llmperf.emulator.build import build_service, refused
from pytest_llmperf.emulator.flags.parser import StartError
from pytest_llmperf.emulator.http.replies import Reply
from pytest_llmperf.emulator.http.service import Service
from pytest_llmperf.emulator.options import read_options
from pytest_llmperf.emulator.quantities import UsageError
from pytest_llmperf.errors import EngineError, Evidence, ExitedEarly, LoadError
from pytest_llmperf.load.schedule import problem_of
from pytest_llmperf.load.transport import Progress, RunningMedians
from pytest_llmperf.load.virtual_client import Client
from pytest_llmperf.model.event import Event, PastEvent
from pytest_llmperf.model.exchange import Ending, Replay
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest
from pytest_llmperf.process.launch import Launch


class VirtualEngine:
    """An emulated engine in the place of a server's process, and where its time lies on the session's clock.

    Every engine's own clock begins at 0; the session's goes on.

    Args:
        name: of the engine.
        launch: the command of the engine, and the folder of its log.
        words: options of the emulator, with the engine's arguments.
        clock: the session's clock, which the engine advances.

    Raises:
        ExitedEarly: the engine would not start, or cannot be emulated.
        EngineError: the log cannot be written.
    """

    def __init__(self, name: str, launch: Launch, words: Sequence[str], clock: VirtualClock) -> None:
        self.launch = launch
        self.clock = clock
        self.begun_ns = clock.now_ns()
        self._service: Service | None = None
        self._ending: str | None = None
        self._lock = threading.Lock()  # of the service: several threads ask for answers
        self._armed: Sequence[Event] = ()
        self._past: tuple[PastEvent, ...] = ()
        launch.prepare()
        with launch.open_log(launch.log_name) as log, chdir(launch.cwd):  # files of flags may be relative
            try:
                self._service = build_service(read_options(words), launch.env)
            except (UsageError, StartError) as error:
                code, line = refused(error)
                log.write(f"{line}\n".encode())
                self._ending = f"exit code {code}"
        if self._ending is not None:
            raise ExitedEarly(f"The emulated {name} server ended before it was ready: {self._ending}. Read its log.",
                              self.evidence())

    def __repr__(self) -> str:
        return f"<VirtualEngine {self._ending or 'running'}>"

    def pids(self) -> tuple[int, ...]:
        """Empty: the emulator runs in this process."""
        return ()

    def ending(self) -> str | None:
        """How it ended; None while it runs."""
        return self._ending

    def wait_exit(self, _timeout_s: float) -> str | None:
        """How it ended, or None: it ends in a call of this session, so nobody has to wait."""
        return self._ending

    def evidence(self, n_lines: int = 200) -> Evidence:
        """Evidence about a failure, with secrets masked."""
        elapsed_s = (self.clock.now_ns() - self.begun_ns) / 1e9
        return self.launch.evidence(self._ending or "running", elapsed_s, n_lines)

    def stop(self, _grace_s: float = 0.0) -> None:
        """Free its memory. May be called again."""
        self._end("stopped")

    def arm(self, events: Sequence[Event], requests: int) -> None:  # noqa: ARG002 - the client counts
        """Send these events with the next plan."""
        self._armed = events

    def sent(self, requests: int) -> None:
        """Nothing to do: the emulator counts what it sends."""

    def past(self) -> tuple[PastEvent, ...]:
        """The events of the last plan."""
        return self._past

    def mend(self) -> None:
        """Nothing to do: the emulator starts dead replicas at the beginning of a run."""

    def answer(self, method: str, target: str, body: bytes) -> Reply:
        """Answer a control request at the present time. A completion runs until it is done.

        Raises:
            EngineError: the engine has ended, or the request was not answered.
        """
        path = target.partition("?")[0]
        with self._at_work() as service:
            if not service.generates(method, path):
                return service.reply(method, target)
            (answered,) = Client(service, LoadPlan("", 0, (PlannedRequest(0, path, body),))).run()
            reply = answered.answer(service)
        if reply is None:
            raise EngineError(f"The emulator does not answer {path}: {answered.ending.value}. A planted fault "
                              "is too large: lower its size in --emulate-fault.",
                              self.evidence())
        return reply

    def replay(self, plan: LoadPlan, cancel: threading.Event) -> Replay:
        """Replay a plan.

        Raises:
            EngineError: the engine has ended, or the replay was given up.
        """
        events, self._armed = self._armed, ()
        with self._at_work() as service:
            service.deployment.begin_run()
            started_ns = self.begun_ns + service.deployment.now_ns
            client = Client(service, plan, events, cancel.is_set)
            answered = client.run()
        self._past = tuple(PastEvent(self.begun_ns + began_ns, self.begun_ns + ended_ns)
                           for began_ns, ended_ns in client.past)
        exchanges = tuple(request.exchange(self.begun_ns, plan.limits) for request in answered)
        return Replay(started_ns=started_ns, ended_ns=self.clock.now_ns(), exchanges=exchanges)

    @contextmanager
    def _at_work(self) -> Iterator[Service]:
        """The engine at the time of the session's clock, which then follows. An interrupt in the midst of a step ends
        the engine."""
        with self._lock:
            service = self._service
            if service is None:
                raise EngineError(f"The emulator ended: {self._ending}.", self.evidence())
            service.deployment.sleep_until(self.clock.now_ns() - self.begun_ns)
            try:
                yield service
            except Exception as error:
                self._end(str(error) or "the load was given up")
                raise EngineError(f"The emulator ended: {self._ending}.", self.evidence()) from error
            except BaseException:
                self._end("interrupted")
                raise
            self.clock.advance_to(self.begun_ns + service.deployment.now_ns)

    def _end(self, how: str) -> None:
        self._ending = self._ending or how
        self._service = None


class VirtualTransport:
    """Replays plans against emulated engines, found by the host that their plan names."""

    def __init__(self, engines: Mapping[str, VirtualEngine]) -> None:
        self.engines = engines

    def replay(
        self,
        plan: LoadPlan,
        *,
        cancel: threading.Event,
        progress: Callable[[Progress], None] | None = None,
    ) -> Replay:
        """One reported answer per request, without bytes. Virtual time has no send delay and no coalesced chunks.

        Raises:
            EngineError: the emulator ended, or the replay was given up.
            LoadError: the plan cannot end.
        """
        if (problem := problem_of(plan.requests)) is not None:
            raise LoadError(f"This plan cannot be replayed: {problem}. Correct `after` of the requests.")
        replay = self.engines[plan.host].replay(plan, cancel)
        if progress is not None:
            failed = sum(exchange.ending not in (Ending.COMPLETE, Ending.ABANDONED) for exchange in replay.exchanges)
            sent, so_far = len(replay.exchanges), RunningMedians()
            for exchange in replay.exchanges:
                so_far.add(exchange)
            elapsed_ns = replay.ended_ns - replay.started_ns
            progress(Progress(sent, sent, failed, elapsed_ns, so_far.ttft_ns, so_far.itl_ns,
                              so_far.durations_ns))
        return replay
