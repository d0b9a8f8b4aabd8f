"""Replays against an emulated engine in virtual time: the plan goes in, what a client would have seen comes back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pytest_llmperf.clock import VirtualClock
from pytest_llmperf.load.transport import Progress, RunningMedians
from pytest_llmperf.model.event import Event, PastEvent
from pytest_llmperf.model.exchange import EmulatedExchange, Ending, Replay
from pytest_llmperf.model.plan import LoadPlan, StreamLimits
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.model.request import RETRIED_STATUSES
from pytest_llmperf.process.background_thread import in_background
from pytest_llmperf.process.piped import PipedProcess

CANCEL_POLL_S = 0.1


class VirtualEngine:
    """An emulated engine behind a pipe, and where its time lies on the session's clock.

    Every engine's own clock begins at 0; the session's goes on.
    """

    def __init__(self, process: PipedProcess, clock: VirtualClock) -> None:
        self.process = process
        self.clock = clock
        self.begun_ns = clock.now_ns()
        self._engine_ns = 0
        self._armed: list[dict[str, object]] = []
        self._past: tuple[PastEvent, ...] = ()

    def arm(self, events: Sequence[Event], requests: int) -> None:
        """Send these events with the next plan."""
        self._armed = [{"restarts": event.action == "restart", "replica": event.replica,
                        "after_requests": event.due(requests)} for event in events]

    def sent(self, requests: int) -> None:
        """Nothing to do: the emulator counts what it sends."""

    def past(self) -> tuple[PastEvent, ...]:
        """The events of the last plan."""
        return self._past

    def mend(self) -> None:
        """Nothing to do: the emulator starts dead replicas at the beginning of a run."""

    def call(self, command: Mapping[str, object]) -> dict[str, Any]:
        """One command; the session's clock follows the engine's.

        Raises:
            EngineError: the engine ended, or refuses.
        """
        slept_ns = self.clock.now_ns() - self.begun_ns - self._engine_ns
        if slept_ns > 0:
            self._follow(self.process.call({"sleep": {"ns": slept_ns}}))
        return self._follow(self.process.call(command))

    def replay(self, plan: LoadPlan) -> Replay:
        """Replay a plan.

        Raises:
            EngineError: the engine ended, or refuses.
        """
        events, self._armed = self._armed, []
        answer = self.call({"simulate": _as_json(plan) | {"events": events}})
        self._past = tuple(PastEvent(self.begun_ns + began_ns, self.begun_ns + ended_ns)
                           for began_ns, ended_ns in answer.get("events", ()))
        return Replay(
            started_ns=self.begun_ns + answer["started_ns"],
            ended_ns=self.begun_ns + answer["ended_ns"],
            exchanges=tuple(emulated_exchange(record, self.begun_ns, plan.limits) for record in answer["records"]),
        )

    def _follow(self, answer: dict[str, Any]) -> dict[str, Any]:
        self._engine_ns = int(answer["now_ns"])
        self.clock.advance_to(self.begun_ns + self._engine_ns)
        return answer


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
        """
        engine = self.engines[plan.host]

        def kill_when_cancelled(done: threading.Event) -> None:
            while not done.wait(CANCEL_POLL_S):
                if cancel.is_set():
                    engine.process.kill()

        with in_background(kill_when_cancelled, "llmperf-virtual-cancel"):
            replay = engine.replay(plan)
        if progress is not None:
            failed = sum(exchange.ending not in (Ending.COMPLETE, Ending.ABANDONED) for exchange in replay.exchanges)
            sent, so_far = len(replay.exchanges), RunningMedians()
            for exchange in replay.exchanges:
                so_far.add(exchange)
            elapsed_ns = replay.ended_ns - replay.started_ns
            progress(Progress(sent, sent, failed, elapsed_ns, so_far.ttft_ns, so_far.itl_ns,
                              so_far.durations_ns))
        return replay


def _as_json(plan: LoadPlan) -> dict[str, object]:
    return {
        "concurrency": plan.concurrency,
        "limits": {
            "first_byte_ns": plan.limits.first_byte_ns,
            "idle_ns": plan.limits.idle_ns,
            "total_ns": plan.limits.total_ns,
            "retried_statuses": sorted(RETRIED_STATUSES),
        },
        "requests": [
            {
                "index": request.index,
                "path": request.path,
                "body": request.body.decode(),
                "at_ns": request.at_ns,
                "after": request.after,
                "think_ns": request.think_ns,
                "continues": request.part is not None and request.part.continues,
                **({"session": request.session} if request.session else {}),
                **(asdict(request.cancellation) if request.cancellation is not None else {}),
                **(asdict(request.retry) if request.retry is not None else {}),
            }
            for request in plan.requests
        ],
    }


def emulated_exchange(record: Mapping[str, Any], begun_ns: int, limits: StreamLimits) -> EmulatedExchange:
    """One record of the emulator's answer, its times moved onto the session's clock."""
    ending = Ending(record["ending"])
    return EmulatedExchange(
        index=record["index"],
        intended_ns=begun_ns + record["intended_ns"],
        sent_ns=None if record["sent_ns"] is None else begun_ns + record["sent_ns"],
        ended_ns=begun_ns + record["ended_ns"],
        ending=ending,
        outcome=Outcome(record["outcome"]),
        error=record["error"] or limits.reached(ending),
        token_ns=tuple([begun_ns + at_ns for at_ns in record["token_ns"]]),
        token_counts=tuple(record["token_counts"]),
        prompt_tokens=record["prompt_tokens"],
        output_tokens=record["output_tokens"],
        cached_tokens=record["cached_tokens"],
        attempts=record.get("attempts", 1),
    )
