"""What to start: immutable, hashable, comparable by value."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    engine: str
    model: str
    flags: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    url: str | None = None

    def __str__(self) -> str:
        shown = [repr(self.model)] if self.url is None else [repr(self.url), f"model={self.model!r}"]
        shown += [f"{name}={value}" for name, value in self.flags]
        shown += [f"env.{name}={value}" for name, value in self.env]
        return f"{self.engine}({', '.join(shown)})"
