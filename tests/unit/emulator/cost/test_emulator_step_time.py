"""The physics of a step: what must hold whatever the coefficients are."""

from dataclasses import replace

import numpy as np
import pytest

from pytest_llmperf.emulator.config import EngineConfig, Speculation
from pytest_llmperf.emulator.cost.coefficients import coefficients_for
from pytest_llmperf.emulator.cost.step_time import StepLoad, StepTime
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.shapes import SHAPES

ENGINES = ["vllm", "sglang"]


def config(engine="vllm", model="llama-3.1-8b", gpu="h200", **more):
    defaults = {
        "max_model_len": 16384, "max_num_batched_tokens": 8192, "max_num_seqs": 1024, "block_size": 16,
        "num_blocks": 57489,
    }  # fmt: skip
    return EngineConfig(engine, SHAPES[model], GPU_KINDS[gpu], **(defaults | more))


def timer(*args, **more):
    resolved = config(*args, **more)
    return StepTime(resolved, coefficients_for(resolved.engine, resolved.gpu))


def decode(n, context):
    return StepLoad(n, n, 0, n, n * context, float(n * context))


def prefill(tokens, computed=0):
    return StepLoad(1, tokens, tokens, 1, computed + tokens, tokens * (computed + (tokens + 1) / 2))


DECODES = [decode(1, 100), decode(16, 1000), decode(200, 2000)]
LOADS = [*DECODES, prefill(64), prefill(1024), prefill(8192), prefill(512, 9000)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("gpu", ["l4", "a100", "h100", "h200"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-8b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b"])
def test_more_work_never_takes_less_time(engine, gpu, model):
    step = timer(engine, model, gpu)
    for smaller, larger in [
        (decode(4, 500), decode(4, 501)),
        (decode(4, 500), decode(5, 500)),
        (prefill(100), prefill(101)),
        (prefill(600), prefill(601)),
        (prefill(600), prefill(600, 100)),
    ]:
        assert step.seconds(smaller) <= step.seconds(larger)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("load", LOADS)
def test_more_gpus_never_compute_longer(engine, load):
    """All-reduces aside, which more GPUs do pay for."""
    free = replace(coefficients_for(engine, GPU_KINDS["h200"]), allreduce_s=0.0, allreduce_bandwidth=1e9)
    times = [StepTime(config(engine, "llama-3.1-70b", tensor_parallel=tp), free).seconds(load) for tp in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weights", ["bfloat16", "fp8"])
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("gpu", ["l4", "a100", "h100", "h200"])
def test_step_time_is_never_below_datasheet_limit(engine, weights, load, gpu):
    hardware, shape = GPU_KINDS[gpu], SHAPES["llama-3.1-8b"]
    width = 1 if weights == "fp8" else 2
    read = shape.dense_parameters * width + shape.head_parameters * 2 + load.kv_tokens * 131072
    peak = hardware.fp8_flops if weights == "fp8" and hardware.fp8_flops else hardware.bf16_flops
    flops = 2 * shape.dense_parameters * load.tokens
    bound = max(read / hardware.bandwidth_bytes_per_s, flops / peak)
    assert timer(engine, gpu=gpu, weights=weights).seconds(load) >= bound


@pytest.mark.parametrize("engine", ENGINES)
def test_fp8_is_quicker_where_weights_or_flops_are_the_limit(engine):
    for load in (decode(1, 1000), prefill(8192)):
        assert timer(engine, weights="fp8").seconds(load) < timer(engine).seconds(load)


@pytest.mark.parametrize(("model", "weights"), [("llama-3.1-8b", "fp8"), ("llama-3.1-8b-gptq-int4", "bfloat16")])
def test_gpu_without_fp8_reads_small_weights_sooner_and_computes_longer_with_them(model, weights):
    """Qwen3-8B on an A100, 1,000 requests at once: mean TPOT of integers ÷ of bfloat16: 1.31 (4 bits), 1.55 (8)."""
    packed, bf16 = timer(gpu="a100", model=model, weights=weights), timer(gpu="a100")
    assert 1.3 < bf16.seconds(decode(1, 1000)) / packed.seconds(decode(1, 1000)) < 1.7
    assert 1.31 < packed.seconds(prefill(8192)) / bf16.seconds(prefill(8192)) < 1.55


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-120b"])
def test_batched_step_times_equal_single_step_times(model):
    """Otherwise virtual time would depend on the length of a fast-forward."""
    step = timer(model=model)
    kv = np.arange(16000, 16000 + 16 * 300, 16)
    at_once = step.seconds(StepLoad(16, 16, 0, 16, kv, kv.astype(np.float64)))
    one_by_one = [step.seconds(StepLoad(16, 16, 0, 16, int(k), float(k))) for k in kv]
    assert at_once.tolist() == one_by_one


def test_mixture_step_reads_weights_of_visited_experts():
    step = timer(model="mixtral-8x7b")
    first, many = step.seconds(decode(1, 10)), step.seconds(decode(64, 10))
    dense = SHAPES["mixtral-8x7b"].dense_parameters * 2 / GPU_KINDS["h200"].bandwidth_bytes_per_s
    assert many > 2.5 * first
    assert first > dense


def test_eager_decode_step_is_slower_by_launch_overhead():
    eager, graphs = timer(cuda_graphs=False), timer()
    assert eager.seconds(decode(1, 100)) > 1.5 * graphs.seconds(decode(1, 100))
    assert eager.seconds(prefill(8192)) == graphs.seconds(prefill(8192))


def test_synchronous_scheduling_costs_time():
    assert timer(async_scheduling=False).seconds(decode(4, 100)) > timer().seconds(decode(4, 100))


def test_draft_model_adds_pass_time_and_ngram_adds_time_of_the_host():
    verify = StepLoad(1, 5, 0, 5, 1005, 5010.0, drafted=4)
    none = timer().seconds(verify)
    n_grams = timer(speculation=Speculation(4, (0.5,) * 4)).seconds(verify)
    model = timer(speculation=Speculation(4, (0.5,) * 4, draft=SHAPES["tiny"])).seconds(verify)
    large = timer(speculation=Speculation(4, (0.5,) * 4, draft=SHAPES["phi-4-mini"])).seconds(verify)
    assert none < model < large
    assert 0.2e-3 < n_grams - none < 1.1e-3  # of ten hosts
    assert large - none > 4 * 2 * SHAPES["phi-4-mini"].dense_parameters / GPU_KINDS["h200"].bandwidth_bytes_per_s


def test_the_front_end_limits_how_many_tokens_leave():
    step = timer("sglang", weights="fp8", tensor_parallel=8)
    limit = coefficients_for("sglang", GPU_KINDS["h200"]).stream_s
    assert step.seconds(decode(2000, 10)) >= 2000 * limit


@pytest.mark.parametrize("draft", [None, SHAPES["tiny"]])
def test_rejected_drafts_do_not_leave(draft):
    """Of 192 streams with four drafts each the front end passes on what was accepted: measured on an H200 32 to 35 ms
    a step, where 960 tokens at the front end's pace would be 38."""
    coefficients = coefficients_for("vllm", GPU_KINDS["h200"])
    resolved = config(speculation=Speculation(4, (0.5,) * 4, draft=draft))
    load = StepLoad(192, 192 * 5, 0, 192 * 5, 192 * 100, 192.0 * 5 * 100, drafted=192 * 4)
    at_once = StepTime(resolved, replace(coefficients, stream_s=0.0)).seconds(load)
    assert at_once < 192 * 5 * coefficients.stream_s
    assert StepTime(resolved, coefficients).seconds(load) == pytest.approx(max(at_once, 192 * coefficients.stream_s))


def test_ingress_time_increases_with_prompt_length():
    step = timer()
    assert 0 < step.ingress_s(10) < step.ingress_s(10000) < 0.2


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallel_step_includes_two_all_reduces_per_layer(tp):
    """Each latency + 2 (tp − 1)/tp × bytes / link."""
    coefficients = coefficients_for("vllm", GPU_KINDS["h200"])
    free = replace(coefficients, allreduce_s=0.0, allreduce_bandwidth=1e12)
    resolved, load = config(tensor_parallel=tp), prefill(400)
    link = GPU_KINDS["h200"].link_bytes_per_s * coefficients.allreduce_bandwidth
    expected = 2 * 32 * (coefficients.allreduce_s + 2 * (tp - 1) / tp * 400 * 4096 * 2 / link)
    spent = StepTime(resolved, coefficients).seconds(load) - StepTime(resolved, free).seconds(load)
    assert spent == pytest.approx(expected, rel=1e-6)


def test_without_nvlink_all_reduces_go_over_pcie():
    load = prefill(2000)
    slow = timer(gpu="l4", weights="fp8", tensor_parallel=2).seconds(load)
    fast = StepTime(
        replace(config(gpu="l4", weights="fp8", tensor_parallel=2),
                gpu=replace(GPU_KINDS["l4"], link_bytes_per_s=450e9)),
        coefficients_for("vllm", GPU_KINDS["l4"]),
    ).seconds(load)
    assert slow > 1.1 * fast


@pytest.mark.parametrize("engine", ENGINES)
def test_int4_saves_reading_and_no_arithmetic(engine):
    """One stream reads packed weights at half the bandwidth. A long prefill computes as long as in bfloat16.

    One host measured that a stream on H200 gains 1.26 and 1.29 times.
    """
    int4, bfloat16 = timer(engine, "llama-3.1-8b-gptq-int4"), timer(engine)
    gpu = GPU_KINDS["h200"]
    saved_bytes = SHAPES["llama-3.1-8b"].dense_parameters * (2 - 2 * 4.125 / 8)
    saved_s = saved_bytes / (gpu.bandwidth_bytes_per_s * coefficients_for(engine, gpu).weight_bandwidth)
    one = decode(1, 100)
    assert bfloat16.seconds(one) - int4.seconds(one) == pytest.approx(saved_s, rel=0.02)
    assert bfloat16.seconds(one) / int4.seconds(one) == pytest.approx(1.29, rel=0.2)
    assert int4.seconds(prefill(8192)) == pytest.approx(bfloat16.seconds(prefill(8192)), rel=0.02)
