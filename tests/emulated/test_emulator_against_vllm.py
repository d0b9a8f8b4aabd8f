"""The emulated scheduler does step by step what vLLM's does: the same tokens, blocks, hits and preemptions.

The truth is recorded: scripts/record_vllm_reference.py, which says what the fields mean. tests/engine_cpu records some
of it anew.
"""

import json
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest

from pytest_llmperf.emulator.config import EngineConfig, Speculation
from pytest_llmperf.emulator.core.engine import Engine
from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.core.vllm_scheduler import VllmScheduler
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.shapes import SHAPES

RECORDED = json.loads(Path(__file__).parents[1].joinpath("data/emulator/vllm_scheduler.json").read_text("utf-8"))
CASES = {case["name"]: case for case in RECORDED["cases"]}


def config(settings):
    """What the engine was told, as the emulator is told it."""
    drafts, accepted = settings["draft_tokens"], settings["accepted"]
    drafter = settings["drafter"]
    rates = (1.0,) * accepted + (0.0,) * (drafts - accepted)
    same = ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "block_size", "num_blocks", "prefix_caching")
    return EngineConfig(
        engine="vllm",
        shape=SHAPES["tiny"],
        gpu=GPU_KINDS["h100"],
        **{name: settings[name] for name in (*same, "chunked_prefill", "async_scheduling")},
        speculation=Speculation(drafts, rates, SHAPES["tiny"] if drafter != "ngram" else None, drafter == "eagle")
        if drafts
        else None,
    )


class OneMillisecond:
    """Every step's length: the order of things is what counts here."""

    def seconds(self, load):
        return 0.001

    def ingress_s(self, prompt_tokens):
        return 0.0


class Watched(VllmScheduler):
    """Hands requests over at their moment, and notes every step."""

    def __init__(self, settings, requests):
        super().__init__(config(settings))
        self.requests = requests
        self.sequences = {}
        self.steps = {}
        self.preempted = Counter()

    @property
    def ended(self):
        return {index for index, sequence in self.sequences.items() if sequence.end is not None}

    def schedule(self, now_ns):
        self.hand_over(now_ns)
        batch = super().schedule(now_ns)
        if batch is not None:
            now = Counter({index: sequence.preemptions for index, sequence in self.sequences.items()})
            preempted, self.preempted = sorted((now - self.preempted).elements()), now
            tokens = {sequence.id: new for sequence, new, _, _ in batch.rows}
            self.steps[id(batch)] = [tokens, {}, preempted, self.pool.free, batch]
        return batch

    def complete(self, batch, now_ns):
        given, finished = super().complete(batch, now_ns)
        self.steps[id(batch)][1] |= {sequence.id: count for sequence, count in given}
        return given, finished

    def hand_over(self, now_ns):
        ended = self.ended
        dry = len(ended) == len(self.sequences)
        for index, request in enumerate(self.requests):
            if index in self.sequences:
                if request.get("abort_at", len(self.steps) + 1) <= len(self.steps):
                    self.abort(self.sequences[index])
                    ended.add(index)
                continue
            due = request["after"] in ended if "after" in request else request["at_step"] <= len(self.steps)
            if due or (dry and "at_step" in request):
                dry = False
                prompt = tuple(self.ids(request["prompt"]))
                self.sequences[index] = Sequence(index, prompt, request["max_tokens"], now_ns, request.get("salt", ""))
                self.add(self.sequences[index])

    def ids(self, parts):
        for part in parts:
            if isinstance(part, dict):
                turn = self.sequences[part["turn"]]
                yield from turn.tokens(0, turn.length)
            else:
                yield from range(part[0], part[0] + part[1])


def replay(case):
    """A case's truth as the emulator has it."""
    scheduler = Watched(case["settings"], case["requests"])
    engine, now_ns = Engine(OneMillisecond(), scheduler), 0
    while len(scheduler.ended) < len(case["requests"]):
        step = engine.step(now_ns)
        assert step or engine.wake_ns(0) is None, "the engine has stopped before all requests have ended"
        now_ns = step.ended_ns if step else now_ns
    assert scheduler.pool.free == scheduler.pool.usable
    counters = engine.counters
    sequences = [scheduler.sequences[index] for index in range(len(case["requests"]))]
    return {
        "cached": [
            sequence.cached_tokens if sequence.generated else None for sequence in sequences
        ],  # told with the first token
        "preemptions": counters.preemptions,
        "queries": counters.prefix_cache_queries,
        "hits": counters.prefix_cache_hits,
        "drafts": counters.spec_drafts,
        "draft_tokens": counters.spec_draft_tokens,
        "accepted_tokens": counters.spec_accepted_tokens,
        "steps": rows(list(scheduler.steps.values())),
    }


def rows(steps):
    """Equal steps in one row, as recorded."""
    vllm_rows = [(compact(tokens), compact(given), preempted, free) for tokens, given, preempted, free, _ in steps]
    folded = []
    for what, same in groupby(vllm_rows, key=lambda step: step[:3]):
        free = (f"{value}x{len(list(run))}" for value, run in groupby(step[3] for step in same))
        folded.append([*what, " ".join(free)])
    return folded


def compact(counts):
    return " ".join(str(index) if count == 1 else f"{index}:{count}" for index, count in counts.items())


def first_difference(mine, truth):
    """Of two lists of rows, for people."""
    number = next((i for i, pair in enumerate(zip(mine, truth, strict=False)) if pair[0] != pair[1]), None)
    if number is None:
        return f"{len(mine)} rows, vLLM has {len(truth)}"
    window = slice(max(0, number - 2), number + 2)
    return "\n".join([f"row {number} differs", "emulator:", *map(str, mine[window]), "vLLM:", *map(str, truth[window])])


@pytest.mark.parametrize("name", CASES)
def test_every_emulated_step_equals_vllm_step(name):
    truth, mine = CASES[name]["truth"], replay(CASES[name])
    assert mine["steps"] == truth["steps"], first_difference(mine["steps"], truth["steps"])
    assert mine == {field: truth[field] for field in mine}
