"""The plan of the load generator: bytes and send times, without tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pytest_llmperf.model.api import SUCCESSFUL_ENDS
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.request import Cancellation, RetryPolicy

Form = Literal["ids", "text", "messages"]


@dataclass(frozen=True, slots=True)
class ConversationPart:
    """Where a turn's own part of a conversation stands in its body.

    Args:
        form: token ids of a JSON list, characters of a JSON string, or messages of a JSON list.
        start, end: first byte of the part, and the byte after it, without the brackets or quotation marks around it.
        continues: whether the parts and answers of the earlier turns belong before the part. They are known when the
            answer to `after` has ended.
    """

    form: Form
    start: int
    end: int
    continues: bool = False


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One HTTP POST.

    Args:
        index: the request's position in its workload.
        path: HTTP path, e.g. "/v1/completions".
        body: JSON body, UTF-8.
        at_ns: when to send, in nanoseconds after the start of the replay; None: as soon as a slot is free.
        after: index of the request whose end this request waits for; None: it waits for no other request.
        think_ns: pause after that end.
        part: place of the turn in its body, for a turn that has an earlier or a later turn; None for any other request.
        cancellation, retry: as in `Request`.
        answers: number of answers that the body asks for (`n`).
        ends: finish reasons of a successful answer. Only after these the next turn of the conversation is sent.
        output_tokens: expected number of output tokens of each answer, for the display of the remaining time.
        session: value of the header X-Session-Id, equal for all turns of a conversation; "" for no such header.
    """

    index: int
    path: str
    body: bytes
    at_ns: int | None = None
    after: int | None = None
    think_ns: int = 0
    part: ConversationPart | None = None
    cancellation: Cancellation | None = None
    retry: RetryPolicy | None = None
    answers: int = 1
    ends: tuple[str, ...] = SUCCESSFUL_ENDS
    output_tokens: int = 1
    session: str = ""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Limits after which the load generator gives up a request. It checks times ten times per second, outside the timed
    path, and sizes at each read.

    Args:
        connect_ns: from the start of the send to an open connection.
        first_byte_ns: from the send to the first byte of the answer's body.
        idle_ns: between two reads after the first byte.
        total_ns: from the send to the end of the answer.
        response_bytes: largest answer, including its head.
        held_bytes: largest memory of one load process for answers that are not recorded yet.
        replay_bytes: largest sum of all answers of a replay.
    """

    connect_ns: int = 10_000_000_000
    first_byte_ns: int = 120_000_000_000
    idle_ns: int = 30_000_000_000
    total_ns: int = 600_000_000_000
    response_bytes: int = 64 * 2**20
    held_bytes: int = 512 * 2**20
    replay_bytes: int = 2**31

    def reached(self, ending: Ending) -> str | None:
        """The limit that ended a request, as the settings name it; None for any other ending."""
        settings = {Ending.FIRST_BYTE_TIMEOUT: ("first_byte_timeout_s", self.first_byte_ns),
                    Ending.IDLE_TIMEOUT: ("idle_timeout_s", self.idle_ns),
                    Ending.TOTAL_TIMEOUT: ("request_timeout_s", self.total_ns)}
        if ending is Ending.CONNECT_TIMEOUT:
            return f"no connection within {self.connect_ns / 1e9:g} s"
        return None if ending not in settings else f"{settings[ending][0]} = {settings[ending][1] / 1e9:g}"


@dataclass(frozen=True, slots=True)
class Channel:
    """How requests reach the server.

    Args:
        tls: whether connections use TLS.
        tls_verify: whether to check the server's certificate and name.
        tls_ca_file: PEM file of certificates to trust instead of the system's certificates.
        proxy: host and port of an HTTP proxy. A request names the whole URL; with TLS the client sends CONNECT. None
            uses no proxy and ignores the environment's proxy variables.
        fresh: whether each request gets a new connection (the setting `connections = "fresh"`). If the schedule allows,
            connections are still opened in advance.
    """

    tls: bool = False
    tls_verify: bool = True
    tls_ca_file: str | None = None
    proxy: tuple[str, int] | None = None
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A whole replay.

    Args:
        host: address to connect to, an IP literal or a name.
        port: TCP port.
        requests: by index.
        headers: further HTTP headers, e.g. Authorization.
        concurrency: largest number of requests in flight; None: no limit.
        limits: when to give up on a request.
        channel: how connections are made.
        retry_stale: send a request once more where a reused connection turned out to be closed before any
            byte of the answer; off, because a retry hides a client event.
        keeps_failed_recording: whether the recorded answers of a failed replay stay on disk until the next run.
    """

    host: str
    port: int
    requests: tuple[PlannedRequest, ...]
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # may hold a key
    concurrency: int | None = None
    limits: StreamLimits = StreamLimits()
    channel: Channel = Channel()
    retry_stale: bool = False
    keeps_failed_recording: bool = True
