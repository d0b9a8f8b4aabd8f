"""What to start: immutable, hashable, comparable by value."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from pytest_llmperf.errors import SpecError
from pytest_llmperf.masking import mask, masked, masked_env, secret_values
from pytest_llmperf.model.lmcache import LMCache, lmcache_of


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One way to run an inference server.

    Two specs that are equal may share a server. Build one with `vllm(...)` or `endpoint(...)`.

    Args:
        engine: adapter name: "vllm", "endpoint", …
        model: name in the shape registry, path, or hub id.
        flags: (name, value as JSON) in the engine's own names, sorted; kept as text so that the spec hashes.
        env: further environment variables, sorted.
        url: of a server that is already running; None where we start it.
        lmcache: what is attached below the engine's own KV cache; None: nothing. See `with_lmcache`.
    """

    engine: str
    model: str
    flags: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    url: str | None = None
    lmcache: LMCache | None = None

    def with_lmcache(self, **options: object) -> EngineSpec:
        """The same engine with LMCache below its KV cache: one unit, started, watched and stopped together.

        Args:
            options: `chunk_size` (tokens), `l1_size_gb` (host memory), `l2_path` (folder of the disk tier),
                `eviction_policy`, `in_process` (LMCacheConnectorV1, vLLM only); defaults as in `LMCache`.

        Raises:
            SpecError: an unknown option, a value that cannot be meant, or an engine that somebody else runs.
        """
        if self.url is not None:
            raise SpecError(f"{self}.with_lmcache(…): an endpoint was started by somebody else, with its own caches.")
        return replace(self, lmcache=lmcache_of(options))

    def __repr__(self) -> str:
        """For people and files: secrets in its flags and environment are masked."""
        flags, env = {name: json.loads(value) for name, value in self.flags}, dict(self.env)
        secrets = secret_values(flags, env)
        shown = [repr(self.model)] if self.url is None else [repr(self.url), f"model={self.model!r}"]
        shown = [mask(text, secrets) for text in shown]
        shown += [f"{name}={json.dumps(masked(value, secrets, name=name), sort_keys=True)}"
                  for name, value in flags.items()]
        shown += [f"env.{name}={value}" for name, value in masked_env(env, secrets).items()]
        attached = "" if self.lmcache is None else mask(f".with_lmcache({self.lmcache})", secrets)
        return f"{self.engine}({', '.join(shown)}){attached}"
