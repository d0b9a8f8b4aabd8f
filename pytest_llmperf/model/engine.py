"""What to start: immutable, hashable, comparable by value."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any, Self
from urllib.parse import urlsplit

from pytest_llmperf.errors import SpecError
from pytest_llmperf.masking import mask, masked, masked_env, secret_values
from pytest_llmperf.model.api import DEFAULT, Api
from pytest_llmperf.model.lmcache import LMCache, lmcache_of
from pytest_llmperf.model.ranks import gpus_of
from pytest_llmperf.model.spending import SpendingLimit

Flag = str | int | float | bool | None | Mapping[str, object] | list[object] | tuple[object, ...]
# Where a server listens and under which name is the launcher's business: it proves by them that the server is ours.
LAUNCHERS_OWN = frozenset({"host", "port", "served_model_name"})
NO_FLAGS = frozenset({"model", "env", "model_alias"})
INSTALLATION = re.compile(r"[A-Za-z0-9_.-]+")
#: The installation that `--llmperf-reference` names: the build that every comparison is made against.
REFERENCE = "reference"
ENDPOINT = "endpoint"  # as adapter name: a server that already runs
LITERAL = ("stream", "fields", "text", "ends")  # values of an Api that are no text
#: Hardware of an endpoint on another machine, unless a test declares it.
UNKNOWN_HARDWARE = "unknown"


def serving_hardware(kind: str, url: str | None) -> str:
    """The hardware kind of the machine that runs the server.

    If this machine has no GPU, the hardware of an endpoint on another machine is unknown. An endpoint on loopback runs
    on this machine.

    Args:
        kind: hardware kind of the test on this machine: "cpu" if the machine has no GPU.
        url: URL of an endpoint; None if this session started the server.

    >>> serving_hardware("cpu", "http://10.0.0.5:8000"), serving_hardware("cpu", "http://localhost:8000")
    ('unknown', 'cpu')
    """
    return UNKNOWN_HARDWARE if kind == "cpu" and url is not None and not _on_loopback(url) else kind


def _on_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost" or host.endswith(".localhost")


def flags_as_json(engine: str, model: str, flags: Mapping[str, Flag]) -> tuple[tuple[str, str], ...]:
    """The flags as a spec stores them: sorted pairs of name and JSON value, without flags whose value is None.

    Raises:
        SpecError: a value cannot be a flag, or a flag is set by the launcher.
    """
    if taken := sorted(LAUNCHERS_OWN & set(flags)):
        raise SpecError(
            f"{engine}({model!r}, {taken[0]}=…): {', '.join(taken)} is set by the launcher, which picks a free port on "
            "127.0.0.1 and a name that proves that the server is ours. Leave it out."
        )
    return tuple(sorted((name, _as_json(engine, name, value)) for name, value in flags.items() if value is not None))


def fields_as_json(call: str, fields: Mapping[str, Flag]) -> tuple[tuple[str, str], ...]:
    """Fields of a request as an `Api` stores them: sorted pairs of name and JSON value.

    The value "null" leaves the field out.

    Raises:
        SpecError: a value is not JSON.
    """
    try:
        return tuple(sorted((name, json.dumps(value, sort_keys=True, allow_nan=False))
                            for name, value in fields.items()))
    except (TypeError, ValueError) as error:
        raise SpecError(f"{call}, fields=…): the value of a field is text, a number, a boolean, or a dict or list of "
                        f"them ({error}).") from error


def _as_json(engine: str, name: str, value: Flag) -> str:
    if any("\0" in str(word) for word in (name, *(value if isinstance(value, list | tuple) else [value]))):
        raise SpecError(f"{engine}(…, {name}={value!r}): no command line can hold a NUL. Leave it out.")
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"{engine}(…, {name}={value!r}): a flag must be text, a number, a boolean, or a dict or list of "
                        f"them ({error})."
        ) from error


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One way to run an inference server.

    Two specs that are equal may share a server. Build one with `vllm(...)` or `endpoint(...)`.

    Args:
        engine: adapter name: "vllm", "endpoint", …
        model: name in the shape registry, path, or hub id.
        flags: (name, value as JSON), sorted, with the engine's own names. Values are text so that the spec is hashable.
        env: further environment variables, sorted.
        lmcache: LMCache attached below the engine's own KV cache; None without LMCache. See `with_lmcache`.
        installation: name of one of several installations of this engine; "" is the default. See `with_installation`.
        model_aliases: further names that the chunks of an answer may give the model.
        kind: hardware kind on which the server runs; None for the kind of the session. The session sets it.
        gpu_set: number of the GPU set that the server takes: with two GPUs a server, set 1 is the third and fourth
            visible GPU. The session sets it.
    """

    engine: str
    model: str
    flags: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    lmcache: LMCache | None = None
    installation: str = ""
    model_aliases: tuple[str, ...] = ()
    kind: str | None = field(default=None, compare=False)
    gpu_set: int = field(default=0, kw_only=True)

    @property
    def is_endpoint(self) -> bool:
        """Whether the server already runs, so that no session starts, resets or stops it."""
        return False

    @property
    def servers(self) -> int:
        """Number of servers that a start of this spec starts."""
        return 1

    @property
    def gpus(self) -> int:
        """Number of GPUs that a start of this spec takes, by its flags."""
        return gpus_of({name: json.loads(value) for name, value in self.flags}) * self.servers

    @property
    def installed_as(self) -> str:
        """Under which name settings and options say where it is installed: "vllm", "vllm:old"."""
        return f"{self.engine}:{self.installation}" if self.installation else self.engine

    def on(self, kind: str | None) -> Self:
        """The same spec on a hardware kind, unless the spec has a kind already."""
        return self if self.kind is not None else replace(self, kind=kind)

    def serving_kind(self, kind: str) -> str:
        """Hardware kind of the machine that serves, for a test that runs as `kind`."""
        return self.kind or kind

    def with_flags(self, /, **flags: Flag) -> Self:
        """The same engine with some flags changed.

        Args:
            flags: the engine's own flags with underscores; None removes a flag.

        Raises:
            SpecError: the engine is an endpoint, or an argument is not a flag.
        """
        if wrong := sorted(NO_FLAGS & set(flags)):
            raise SpecError(f"with_flags({wrong[0]}=…): {wrong[0]} is not a flag. Build another spec: "
                            f"{self.engine}(MODEL, …).")
        merged = {name: json.loads(value) for name, value in self.flags} | flags
        return replace(self, flags=flags_as_json(self.engine, self.model, merged))

    def with_installation(self, name: str) -> Self:
        """The same engine from another installation, for instance to compare two builds in one session.

        Args:
            name: as in `--llmperf-engine ENGINE:NAME=PLACE` or in `[tool.llmperf.engines]`; "" is the default.

        Raises:
            SpecError: the name is invalid, or the engine is an endpoint.
        """
        if not isinstance(name, str) or (name and not INSTALLATION.fullmatch(name)):
            raise SpecError(f"{self}.with_installation({name!r}): a name may contain only letters, digits, '.', '_' "
                            "and '-'.")
        return replace(self, installation=name)

    def with_router(self, *_: Any, **__: Any) -> EngineSpec:  # noqa: ANN401 - whatever a deployment takes
        """Refused: only a deployment has a router."""
        raise SpecError(f"{self}.with_router(…): only replicas that a test starts have a router that it can change. "
                        "Write replicas(vllm(MODEL), 2, router=vllm_router()).with_router(…).")

    def with_lmcache(self, **options: object) -> Self:
        """The same engine with LMCache below its KV cache: one unit, started, watched and stopped together.

        Args:
            options: `chunk_size` (tokens), `l1_size_gb` (host memory), `l2_path` (folder of the disk tier),
                `eviction_policy`, `in_process` (LMCacheConnectorV1, vLLM only); defaults as in `LMCache`.

        Raises:
            SpecError: an option is unknown, a value is invalid, or the engine is an endpoint.
        """
        return replace(self, lmcache=lmcache_of(options))

    def __repr__(self) -> str:
        """Text for people and files, in which secrets of the flags and the environment are masked."""
        flags, env = {name: json.loads(value) for name, value in self.flags}, dict(self.env)
        secrets = secret_values(flags, env)
        shown = [mask(text, secrets) for text in (repr(self.model), *_aliases(self.model_aliases))]
        shown += [f"{name}={json.dumps(masked(value, secrets, name=name), sort_keys=True)}"
                  for name, value in flags.items()]
        shown += [f"env.{name}={value}" for name, value in masked_env(env, secrets).items()]
        attached = "" if self.lmcache is None else mask(f".with_lmcache({self.lmcache})", secrets)
        place = f".with_installation({self.installation!r})" if self.installation else ""
        return f"{self.engine}({', '.join(shown)}){attached}{place}"


@dataclass(frozen=True, slots=True, repr=False)
class Endpoint(EngineSpec):
    """A server that already runs. Its operator chose the flags, so the spec has no flags, variables or caches.

    Args:
        kind: the hardware kind that the test declares; None without a declaration.
        url: URL of the server.
        secret_headers: pairs of HTTP header and source, such as "env:VARIABLE"; never a value.
        api: how requests are written and answers are read.
        metrics: addresses of the replicas' counters; None: the page of `url`; (): no page at all.
        metrics_headers: pairs of HTTP header and source for `metrics`; never a value.
        limit: the most that a session may spend at this endpoint; None without a limit.
    """

    kind: str | None = None
    url: str = ""
    secret_headers: tuple[tuple[str, str], ...] = ()
    api: Api = DEFAULT
    metrics: tuple[str, ...] | None = None
    metrics_headers: tuple[tuple[str, str], ...] = ()
    limit: SpendingLimit | None = None

    @property
    def is_endpoint(self) -> bool:
        return True

    def on(self, kind: str | None) -> Self:  # noqa: ARG002 - the machine that sends has another kind
        """The endpoint itself: only its test can declare a kind."""
        return self

    def serving_kind(self, kind: str) -> str:
        """The declared kind, else as `serving_hardware` says."""
        return self.kind or serving_hardware(kind, self.url)

    def with_flags(self, /, **flags: Flag) -> Self:  # noqa: ARG002
        """Raise SpecError."""
        raise SpecError(f"{self}.with_flags(…): this server runs already, so its flags cannot change. Leave out "
                        "this call.")

    def with_installation(self, name: str) -> Self:  # noqa: ARG002
        """Raise SpecError."""
        raise SpecError(f"{self}.with_installation(…): this server runs already. Leave out this call.")

    def with_lmcache(self, **options: object) -> Self:  # noqa: ARG002
        """Raise SpecError."""
        raise SpecError(f"{self}.with_lmcache(…): this server runs already, with its own caches. Leave out "
                        "this call.")

    def __repr__(self) -> str:
        """Text for people and files, without values of secrets."""
        shown = [repr(self.url), f"model={self.model!r}", *_aliases(self.model_aliases)]
        shown += [f"kind={self.kind!r}"] if self.kind is not None else []
        shown += [f"limit={self.limit}"] if self.limit is not None else []
        shown += [f"{name}={value if name in LITERAL else repr(value)}" for name, value in self.api.stated.items()]
        shown += [f"replica_header={self.api.replica_header!r}"] if self.api.replica_header else []
        shown += [f"header.{header}={source}" for header, source in self.secret_headers]
        shown += [f"metrics={list(self.metrics)!r}"] if self.metrics is not None else []
        shown += [f"metrics_header.{header}={source}" for header, source in self.metrics_headers]
        return f"{self.engine}({', '.join(shown)})"


def _aliases(names: tuple[str, ...]) -> list[str]:
    return [f"model_alias={list(names)!r}"] if names else []
