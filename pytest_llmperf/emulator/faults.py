"""Planted faults: regressions of known size, with which a verdict can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from random import Random
from typing import Literal

from pytest_llmperf.emulator.config import EngineConfig
from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.quantities import UsageError, divisor, duration_s, fraction

FaultKind = Literal["refused", "limited", "error", "hang", "truncated"]


@dataclass(frozen=True, slots=True)
class HttpFault:
    """The planted end of a request.

    Args:
        kind: refused: HTTP 500; limited: HTTP 429; error: an error event in the stream; hang: silence; truncated: a
            close without end.
        after_tokens: number of tokens of the request before this end.
    """

    kind: FaultKind
    after_tokens: int


@dataclass(frozen=True, slots=True)
class Faults:
    """The planted faults of a server; the defaults plant no fault.

    Args:
        step_time: relative increase of the step time.
        prefix_cache_off: whether the prefix cache never hits, independent of the flags.
        answer_cache_off: whether the prefix cache loses generated tokens and keeps prompts only.
        chunk_budget: divides the token budget of a step. The resolved configuration shows the change.
        kv: changes the number of KV blocks by this fraction. The resolved configuration shows the change.
        acceptance: added to the acceptance probability of each draft position.
        tp_link: divides the bandwidth between GPUs.
        offload_bandwidth: divides the bandwidth of the tiers below the GPU's memory.
        stalls, stall_s: share of the steps that the scheduler delays, and for how long.
        leaked_blocks: KV blocks that a finished request never frees.
        policy_ignored: whether the router of several replicas chooses the next one in turn, whatever its policy.
        starved_replica: number of a replica, from 1, that the router leaves out; 0 for none.
        slow_replica, slow_replica_number: relative increase of the step time of one replica, and its number from 1.
        throttle, throttle_steps: the step time grows linearly by the fraction `throttle` over `throttle_steps` steps,
            and stays at this level.
        errors, hangs, truncated, limited: share of the requests that fail (half with an HTTP status, half in the
            stream), share that hang before the end, share that close without [DONE], and share that are refused with
            HTTP 429.
        swapped: share of the requests that are answered with another request's KV cache.
        stale_blocks: share of the requests with cached tokens whose cached blocks include a block of another prompt.
        truncated_transfers: share of the requests with transferred KV cache whose transfer lacks the end.
        wrong_weights: number of a replica, from 1, that has loaded other weights; 0 for none.
        disconnects_ignored: whether the server goes on with a request after its client has closed the connection.
    """

    step_time: float = 0.0
    prefix_cache_off: bool = False
    answer_cache_off: bool = False
    chunk_budget: float = 1.0
    kv: float = 0.0
    acceptance: float = 0.0
    tp_link: float = 1.0
    offload_bandwidth: float = 1.0
    stalls: float = 0.0
    stall_s: float = 0.05
    leaked_blocks: int = 0
    policy_ignored: bool = False
    starved_replica: int = 0
    slow_replica: float = 0.0
    slow_replica_number: int = 2
    throttle: float = 0.0
    throttle_steps: int = 5000
    errors: float = 0.0
    hangs: float = 0.0
    truncated: float = 0.0
    limited: float = 0.0
    swapped: float = 0.0
    stale_blocks: float = 0.0
    truncated_transfers: float = 0.0
    wrong_weights: int = 0
    disconnects_ignored: bool = False

    def corrupts(self, seed: int, sequence: Sequence) -> bool:
        """Whether a planted fault makes the answer to this sequence wrong."""
        if self.wrong_weights:
            return sequence.engine + 1 == self.wrong_weights
        share = max(self.swapped, self.stale_blocks if sequence.cached_tokens else 0.0,
                    self.truncated_transfers if sequence.external_tokens else 0.0)
        return bool(share) and Random(f"{seed} corrupt {sequence.id}").random() < share

    def resolved(self, config: EngineConfig) -> EngineConfig:
        """The configuration with the faults that a server reports in its resolved configuration."""
        return replace(
            config,
            max_num_batched_tokens=max(1, round(config.max_num_batched_tokens / self.chunk_budget)),
            num_blocks=max(2, round(config.num_blocks * (1 + self.kv))),
        )

    def of_replica(self, number: int) -> Faults:
        """The faults of one replica, whose number begins at 1."""
        slowed = (1 + self.step_time) * (1 + self.slow_replica) - 1
        return replace(self, step_time=slowed) if self.slow_replica and number == self.slow_replica_number else self

    def hidden(self, config: EngineConfig) -> EngineConfig:
        """The configuration that the emulated engine runs: `config` with the faults that no server reports."""
        link = config.gpu.link_bytes_per_s
        gpu = replace(
            config.gpu,
            link_bytes_per_s=None if link is None else link / self.tp_link,
            pcie_bytes_per_s=config.gpu.pcie_bytes_per_s / (self.tp_link if link is None else 1.0),
        )
        speculation = config.speculation
        if speculation is not None and self.acceptance:
            changed = tuple(min(1.0, max(0.0, rate + self.acceptance)) for rate in speculation.acceptance)
            speculation = replace(speculation, acceptance=changed)
        tiers = tuple(tier.faster(1 / self.offload_bandwidth) for tier in config.tiers)
        caching = config.prefix_caching and not self.prefix_cache_off
        return replace(config, gpu=gpu, speculation=speculation, tiers=tiers, prefix_caching=caching,
                       answer_caching=not self.answer_cache_off)

    def of_request(self, seed: int, number: int, max_tokens: int) -> HttpFault | None:
        """The planted fault of request `number`; None if the request is served. It depends only on the seed and the
        number."""
        bounds = tuple(accumulate((self.errors, self.hangs, self.truncated, self.limited)))
        if not bounds[-1]:
            return None
        random = Random(f"{seed} {number}")
        drawn, after = random.random(), random.randrange(max_tokens)
        if drawn < self.errors / 2:
            return HttpFault("refused", 0)
        kinds: tuple[FaultKind, ...] = ("error", "hang", "truncated", "limited")
        kind = next((kind for kind, bound in zip(kinds, bounds, strict=True) if drawn < bound), None)
        return None if kind is None else HttpFault(kind, 0 if kind == "limited" else after)


def _only(word: str) -> Callable[[str, str], bool]:
    def read(text: str, where: str) -> bool:
        if text != word:
            raise UsageError(f"{where}: it can only be {word}.")
        return True

    return read


def _count(things: str, default: int | None = None) -> Callable[[str, str], int]:
    def read(text: str, where: str) -> int:
        if default is not None and not text:
            return default
        if not text.isdecimal() or int(text) < 1:
            raise UsageError(f"{where}: {text!r} is no number of {things}.")
        return int(text)

    return read


_share = partial(fraction, least=0.0, most=1.0)
# name → (how its value looks, the field and its reader); a second field has its value behind a colon
_READERS: dict[str, tuple[str, dict[str, Callable[[str, str], object]]]] = {
    "step_time": ("+5%", {"step_time": partial(fraction, least=-0.99)}),
    "prefix_cache": ("off", {"prefix_cache_off": _only("off")}),
    "answer_cache": ("off", {"answer_cache_off": _only("off")}),
    "chunk_budget": ("/4", {"chunk_budget": divisor}),
    "kv": ("-50%", {"kv": partial(fraction, least=-0.999)}),
    "acceptance": ("-0.2", {"acceptance": partial(fraction, most=1.0)}),
    "tp_link": ("/2", {"tp_link": divisor}),
    "offload_bandwidth": ("/4", {"offload_bandwidth": divisor}),
    "stalls": ("1%[:50ms]", {"stalls": _share, "stall_s": duration_s}),
    "leak": ("[BLOCKS]", {"leaked_blocks": _count("blocks", 1)}),
    "router": ("round_robin", {"policy_ignored": _only("round_robin")}),
    "starved_replica": ("2", {"starved_replica": _count("a replica")}),
    "slow_replica": ("+20%[:2]", {"slow_replica": partial(fraction, least=-0.99),
                                  "slow_replica_number": _count("a replica")}),
    "throttle": ("+30%[:STEPS]", {"throttle": lambda text, where: fraction(text or "+30%", where, least=0.0),
                                  "throttle_steps": _count("steps")}),
    "errors": ("1%", {"errors": _share}),
    "hangs": ("1%", {"hangs": _share}),
    "truncated": ("1%", {"truncated": _share}),
    "limited": ("1%", {"limited": _share}),
    "swapped": ("10%", {"swapped": _share}),
    "stale_blocks": ("10%", {"stale_blocks": _share}),
    "truncated_transfers": ("10%", {"truncated_transfers": _share}),
    "wrong_weights": ("2", {"wrong_weights": _count("a replica")}),
    "disconnects": ("ignored", {"disconnects_ignored": _only("ignored")}),
}  # fmt: skip
FAULTS = tuple(f"{name}={value}" for name, (value, _) in _READERS.items())


def parse_faults(options: Iterable[str]) -> Faults:
    """Read options like "step_time=+5%" or "leak". The last option of a fault overrides earlier options.

    Raises:
        UsageError: the fault does not exist, or its value is invalid.
    """
    planted: dict[str, object] = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in _READERS:
            raise UsageError(f"--fault {option}: no such fault. There are {', '.join(FAULTS)}.")
        readers = _READERS[name][1]
        first, _, second = value.strip().partition(":") if len(readers) > 1 else (value.strip(), "", "")
        texts = (first, second) if second else (first,)
        planted |= {
            field: read(text, f"--fault {option}")
            for (field, read), text in zip(readers.items(), texts, strict=False)
        }
    return Faults(**planted)  # type: ignore[arg-type]
