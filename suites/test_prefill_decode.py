"""Prefill and decode on servers of their own: long prompts no longer stall streams, and each prompt crosses a link.

The fair opponent has the same GPUs: two plain replicas, each of which does both.
"""

from dataclasses import dataclass

import pytest

from pytest_llmperf import (
    EngineSpec,
    Perf,
    Workload,
    by_kind,
    closed,
    kill,
    mixed,
    nixl,
    poisson,
    prefill_decode,
    random_tokens,
    replicas,
    restart,
    vllm,
    vllm_router,
)


@dataclass(frozen=True)
class Case:
    model: str = "llama-3.1-8b"
    rate: float = 6  # of requests to two servers
    prompt_rate: float = 8  # of long prompts beside the streams, of which a prefill server computes more
    streams: int = 8
    prompts: tuple[int, ...] = (128, 512, 1024, 2048, 4096)


CASES = by_kind(l4=Case("phi-4-mini", rate=2, prompt_rate=4), a100=Case(rate=3, prompt_rate=5), h100=Case(),
                h200=Case())
LINKED = ["prefill_tokens(a.decode) == 0", "transferred_bytes(a) >= 0.95 * expected", "failed_transfers(a) == 0"]


def apart(engine: EngineSpec, **options: float) -> EngineSpec:
    return prefill_decode(prefill=replicas(engine, 1), decode=replicas(engine, 1), connector=nixl(),
                          router=vllm_router(policy="round_robin", **options))


def plain(engine: EngineSpec) -> EngineSpec:
    return replicas(engine, 2, router=vllm_router(policy="round_robin"))


def mixed_lengths(case: Case) -> Workload:
    """Short prompts with long answers, beside long prompts with short answers."""
    return mixed(
        stream={"input": 128, "output": 200, "arrivals": closed(case.streams), "requests": 6 * case.streams},
        prefill={"input": 1500, "output": 4, "arrivals": poisson(case.prompt_rate), "requests": 60},
    )


@by_kind(cpu=Case("tiny"))
def test_decode_server_fetches_each_prompt_and_computes_none(case: Case, perf: Perf) -> None:
    load = random_tokens(input=(200, 1500), output=16, arrivals=closed(2), requests=30)
    run = perf.measure(apart(vllm(case.model, max_model_len=4096)), load, runs=1)
    perf.check(run, "error_rate == 0", "prefill_tokens(decode) == 0", "finished_requests(prefill) == 30",
               "transferred_bytes >= 0.95 * expected", "failed_transfers == 0", "expired_transfers == 0")


@CASES
@pytest.mark.gpus(2)
def test_split_smooths_streams_beside_long_prompts(case: Case, perf: Perf) -> None:
    engine = vllm(case.model, max_model_len=8192)
    perf.claim(apart(engine), plain(engine), mixed_lengths(case), "itl_p99(b) / itl_p99(a) >= 1.5", mechanism=LINKED,
               allow={"ttft_p50": 3.0}, runs=5)  # on two H200 three pairs between 2.3 and 4.0 did not decide


@CASES
@pytest.mark.gpus(2)
def test_killed_decode_server_is_back_after_its_restart(case: Case, perf: Perf) -> None:
    """Without a decode server each request fails, and none hangs. A start on a GPU takes 76 to 170 s.

    By default the router looks every 60 s whether the server is back.
    """
    split = apart(vllm(case.model, max_model_len=8192), health_check_interval_secs=1, health_success_threshold=1)
    load = random_tokens(input=512, output=64, arrivals=poisson(case.rate), requests=int(240 * case.rate))
    events = [kill("decode", replica=0, at_requests=0.1), restart("decode", replica=0, at_requests=0.12)]
    run = perf.measure(split, load, runs=2, events=events)
    perf.check(run, "error_rate(before) == 0", "error_rate <= 90%", "error_rate(after) <= 5%", "hung_requests == 0")


@CASES
@pytest.mark.gpus(2)
def test_split_pays_where_prompts_are_long(case: Case, perf: Perf) -> None:
    """A short prompt waits longer for its first token, because a second server takes part. Long prompts stall no
    stream."""
    engine = vllm(case.model, max_model_len=8192)
    loads = {prompt: random_tokens(input=prompt, output=64, arrivals=poisson(case.rate), requests=60)
             for prompt in case.prompts}
    engines = {"split": apart(engine), "plain": plain(engine), "one": engine}
    measured = perf.measure_each(engines, loads, runs=3)
    for sides in measured.values():
        perf.check(sides["split"], "error_rate == 0", "prefill_tokens(decode) == 0",
                   "transferred_bytes >= 0.95 * expected", "failed_transfers == 0")
    shortest, longest = measured[case.prompts[0]], measured[case.prompts[-1]]
    perf.compare("ttft_p50(split) / ttft_p50(plain) >= 1.1", split=shortest["split"], plain=shortest["plain"])
    perf.compare("itl_p99(plain) / itl_p99(split) >= 2", plain=longest["plain"], split=longest["split"])
    perf.compare("itl_p99(one) / itl_p99(split) >= 2", one=longest["one"], split=longest["split"])
