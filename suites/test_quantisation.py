"""Quantised weights: speed beside right answers."""

from dataclasses import dataclass

import pytest

from pytest_llmperf import EngineSpec, Perf, by_kind, closed, random_tokens, sharegpt, vllm

TASK = "suites/tasks/sums.yaml"
CHAINS = sharegpt(path="suites/tasks/sums_chains.json", arrivals=closed(4), requests=16)
ANSWERS_INVENTED = "the emulator invents its answers, so no share of them is right or wrong"


@dataclass(frozen=True)
class Case:
    model: str = "suites/models/sums"


CASES = by_kind(cpu=Case(), h100=Case(), h200=Case())


def trained(case: Case, weights: str = "") -> EngineSpec:
    return vllm(f"{case.model}{weights}", max_model_len=512)


@CASES
@pytest.mark.parametrize("weights", ["int8", "gptq", "awq"])
@pytest.mark.not_emulated(ANSWERS_INVENTED)
def test_quantised_weights_answer_as_well(case: Case, perf: Perf, weights: str) -> None:
    # The model is so small that the engine's own work fills a step: fewer bits may cost time, and not right answers.
    perf.claim(
        trained(case, f"-{weights}"),
        trained(case),
        CHAINS,
        "tpot_mean(a) / tpot_mean(b) <= 1.5",
        allow={"ttft_p50": 2.0},
        guards={f"accuracy({TASK})": 0.01},
    )


@CASES
@pytest.mark.not_emulated(ANSWERS_INVENTED)
def test_sums_are_right_in_part(case: Case, perf: Perf) -> None:
    answers = perf.accuracy(trained(case), TASK, at_least=0.5)
    assert answers is not None
    assert answers.share <= 0.95, "too few questions are wrong, so a loss of accuracy would not show"


@by_kind(cpu=Case(), a100=Case(), h100=Case(), h200=Case())
@pytest.mark.parametrize("method", ["gptq", "awq"])
@pytest.mark.not_emulated("the emulator accepts drafts by a rate that the test would have to state")
def test_four_bit_weights_choose_tokens_of_original_weights(case: Case, perf: Perf, method: str) -> None:
    """The original model drafts for its quantised copy: a draft is accepted where both choose the same token."""
    draft = {"method": "draft_model", "model": case.model, "num_speculative_tokens": 3}
    engine = trained(case, f"-{method}").with_flags(async_scheduling=False, speculative_config=draft)
    perf.check(perf.measure(engine, CHAINS), "spec_acceptance_rate >= 90%", "error_rate == 0")


@dataclass(frozen=True)
class Formats:
    """Limits of mean TPOT and of blocks, bfloat16 against fewer bits: docs/evidence/suite_limits.md."""

    fp8: float
    int4: float
    #: Blocks of the KV cache beside the weights in bfloat16.
    blocks: int


BFLOAT16 = vllm("llama-3.1-8b", max_model_len=16384)
FEWER_BITS = {
    "fp8": BFLOAT16.with_flags(quantization="fp8"),
    "gptq": vllm("llama-3.1-8b-gptq-int4", max_model_len=16384),
    "awq": vllm("llama-3.1-8b-awq-int4", max_model_len=16384),
}
#: Blocks in the memory that these weights leave, beyond those of bfloat16.
FREED_BLOCKS = {"fp8": 3328, "gptq": 4940, "awq": 4927}


@by_kind(a100=Formats(1.2, 1.35, blocks=29_200), h100=Formats(1.1, 1.3, blocks=28_900),
         h200=Formats(1.05, 1.25, blocks=57_500))
@pytest.mark.parametrize("weights", list(FEWER_BITS))
def test_fewer_bits_decode_faster_and_leave_more_blocks(case: Formats, perf: Perf, weights: str) -> None:
    """One stream reads fewer bytes. A crowd computes as long as it reads, so its ratio of throughput is reported."""
    loads = [random_tokens(input=64, output=128, arrivals=closed(1), requests=8),
             random_tokens(input=256, output=64, arrivals=closed(192), requests=192)]
    engines = {"fewer": FEWER_BITS[weights], "bfloat16": BFLOAT16}
    # The server of bfloat16 stays for the next test.
    order = reversed(engines) if weights == "gptq" else engines
    measured = {side: [perf.measure(engines[side], load, runs=runs) for load, runs in zip(loads, (3, 2), strict=True)]
                for side in order}
    alone, crowd = ({side: runs[load] for side, runs in measured.items()} for load in (0, 1))
    for run in (*measured["bfloat16"], *measured["fewer"]):
        perf.check(run, "error_rate == 0")
    # Six tenths of the arithmetic must be proven: kernels keep workspaces, and scales in a layout of their own.
    blocks = 1 + 0.6 * FREED_BLOCKS[weights] / case.blocks
    perf.compare(
        f"tpot_mean(bfloat16) / tpot_mean(fewer) >= {case.fp8 if weights == 'fp8' else case.int4}",
        f"kv_blocks(fewer) / kv_blocks(bfloat16) >= {blocks:.4f}",
        "output_throughput(fewer) / output_throughput(bfloat16)", **alone,
    )
    perf.compare("output_throughput(fewer) / output_throughput(bfloat16)", **crowd)
