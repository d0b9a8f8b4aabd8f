"""A running server or endpoint, as measurements use it: processes, control requests and counters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_llmperf.clock import Clock, SystemClock
from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.control.api import ControlApi
from pytest_llmperf.engines.control.contact import Contact
from pytest_llmperf.engines.control.counters import ServerCounters
from pytest_llmperf.engines.control.json_answers import json_object
from pytest_llmperf.engines.control.reader import ServerReader
from pytest_llmperf.engines.endpoint.replica_pages import DeploymentPages, ReplicaPages
from pytest_llmperf.engines.lmcache.settings import is_attached
from pytest_llmperf.engines.models import ResolvedModel
from pytest_llmperf.engines.models.text_tokenizer import TextTokenizer
from pytest_llmperf.engines.process.unit import Unit
from pytest_llmperf.model.api import Api
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.request import Request
from pytest_llmperf.wire.completions import AnswerIds
from pytest_llmperf.workload.prompts import in_words
from pytest_llmperf.workload.words import COMMON_WORDS

if TYPE_CHECKING:
    from pytest_llmperf.engines.deployment.unit import ReplicaDisturber
    from pytest_llmperf.load.virtual import VirtualEngine

GENERATED = "generation_tokens"


class Server:
    """One running server.

    Args:
        reader: routes and bodies of this kind of server.
        contact: address and credentials of the server.
        unit: processes of the server; an endpoint has none.
        client: sends control requests; None for a new client that connects to the contact.
        start_id: number of the server start in the session; all runs on one start have the same number.
        model: what it loaded; None for an endpoint.
        clock: measures how long the session waits for the server.
        host_env: variables by which this machine changes performance, see `EngineAdapter.host_variables`.
        replicas: metrics pages of the replicas of a service; None for a server with one page.
        tokenizer: counts texts and makes text prompts; None if the endpoint names none.

    Attributes:
        control: asks the server what is not timed.
        counters: its counters and gauges.
        warmed_for: workloads for which the server was warmed up.
        labels: of an endpoint: workload and seed → the number by which its prompts were last relabelled.
        fresh: whether the latest measurement asked for a new start of the server.
        requested_spec: its spec before flags were planted and memory was shared out.
        siblings: number of other servers that run on the same GPUs, idle during a measurement.
        elsewhere: number of servers of this session on other GPUs.
        takes_turns: whether the siblings sleep during a measurement.
        disturber: ends and restarts replicas during a run; None for a single server.
    """

    def __init__(
        self, reader: ServerReader, contact: Contact, unit: Unit, client: httpx.Client | None = None, *, start_id: int,
        model: ResolvedModel | None = None, clock: Clock | None = None, host_env: Mapping[str, str] | None = None,
        replicas: DeploymentPages | ReplicaPages | None = None, tokenizer: TextTokenizer | None = None,
    ) -> None:  # fmt: skip
        self.reader = reader
        self.contact = contact
        self.unit = unit
        self.spec = self.requested_spec = unit.spec
        self.start_id = start_id
        self.model = model
        self.clock = clock or SystemClock()
        self.host_env = dict(host_env or {})
        self.tokenizer = tokenizer
        self.control = ControlApi(reader, contact, unit, client or contact.client())
        self.counters = ServerCounters(self.control, self.clock, replicas)
        self.warmed_for: set[str] = set()
        self.answer_ids = AnswerIds()
        self.labels: dict[tuple[str, int], int] = {}
        self.fresh = False
        self.siblings = self.elsewhere = 0
        self.takes_turns = False
        self.disturber: ReplicaDisturber | VirtualEngine | None = None

    def __repr__(self) -> str:
        return f"<Server {self.spec} at {self.contact.url}, {self.unit!r}>"

    @property
    def api(self) -> Api:
        """How requests are written and answers are read."""
        return self.reader.interface

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names of the model that an answer may have: the requested name first, then the declared aliases."""
        return (self.contact.served_name, *self.spec.model_aliases)

    def post(self, request: Request) -> tuple[str, bytes]:
        """HTTP path and body for one request of a workload."""
        path, body = self.reader.post(self.spec, request, request.model or self.contact.served_name)
        return self.contact.service.path(path), body

    def as_sent(self, requests: Iterable[Request]) -> tuple[Request, ...]:
        """The requests with text prompts if this server takes text only, or if the test asks for text.

        Raises:
            SpecError: the named tokenizer has too few words of one token.
        """
        if not self.api.sends_text:
            return tuple(requests)
        return in_words(requests, COMMON_WORDS if self.tokenizer is None else self.tokenizer.words)

    @cached_property
    def text_counter(self) -> TextTokenizer | None:
        """The named tokenizer of a server without a counter of generated tokens; None for any other server."""
        return None if self.tokenizer is None or GENERATED in self.counters.read() else self.tokenizer

    @cached_property
    def facts(self) -> Mapping[str, str]:
        """Version, resolved configuration and what else a comparison depends on; asked once per start."""
        pages = self.counters.pages(fresh=False)
        with self.control.answering("its configuration"):
            values = dict(self.reader.resolved(self.control.client))
            response = self.control.client.get("/version")
        of_replicas = [self.reader.facts(page) for page in pages.values()]
        for name in dict.fromkeys(name for facts in of_replicas for name in facts):
            values[name] = " / ".join(dict.fromkeys(facts.get(name, "unknown") for facts in of_replicas))
        if "version" in (body := json_object(response)):
            values["version"] = str(body["version"])
        lmcache = self.unit.lmcache
        return values if lmcache is None else values | lmcache.facts()

    def reset_cache(self, keep: Collection[str] = ()) -> bool:
        """Empty all tiers of the KV cache that `keep` does not name. Returns False if the engine or its LMCache may
        still hold tokens.

        Args:
            keep: of "engine" (its own KV cache), "l1" (host memory, LMCache's or what vLLM offloads there) and "l2"
                (LMCache's disk). What SGLang has in host memory itself is kept or emptied with "engine".
        """
        self.unit.check_alive()
        emptied = False
        if "engine" not in keep:
            with self.control.answering("an emptied prefix cache"):
                emptied = (self.reader.reset_cache(self.control.client, external="l1" not in keep)
                           or self._caches_nothing)
        if self.unit.lmcache is not None:
            self.unit.lmcache.clear({"l1", "l2"} - set(keep), self.clock)
        elif "l1" not in keep and is_attached(self.spec):
            return False  # nothing empties an LMCache in the process of the engine, though vLLM answers success
        return emptied

    @property
    def _caches_nothing(self) -> bool:
        """Whether the configuration of the server has no prefix cache."""
        facts = self.facts
        return facts.get("enable_prefix_caching") == "False" or facts.get("disable_radix_cache") == "True"

    def mend(self) -> None:
        """Start every replica that the events of an earlier run left dead.

        Raises:
            EngineError: a replica did not start.
        """
        if self.disturber is not None:
            self.disturber.mend()

    def sleep(self) -> None:
        """Release the GPU memory. Nothing is warm afterwards.

        Raises:
            EngineError: as of `ControlApi.sleep`.
        """
        self.control.sleep()
        self.warmed_for.clear()

    def detach_replicas(self, spec: EngineSpec, grace_s: float) -> Mapping[str, Server]:  # noqa: ARG002
        """The replicas of a deployment by name, which survive the stop of their router; the caller must stop them.

        Args:
            spec: of the deployment that takes over the replicas.
            grace_s: time that the router has to end by itself.

        Returns:
            Nothing for a single server or a deployment with a dead part, or if `spec` differs in more than the router.
        """
        return {}

    def stop(self, grace_s: float) -> None:
        """End the unit, as `Unit.stop` does, and all connections; nothing else to do for an endpoint.

        Raises:
            StopFailed: something of it survived.
        """
        with ExitStack() as steps:
            steps.callback(self.control.client.close)
            if self.counters.replicas is not None:
                steps.callback(self.counters.replicas.close)
            steps.callback(self.unit.stop, grace_s)
