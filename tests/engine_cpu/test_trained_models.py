"""The trained models on real vLLM: acceptance and accuracy lie where a loss shows, and planted losses fail."""

import json
import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODELS, TASKS = ROOT / "suites" / "models", ROOT / "suites" / "tasks"
HARNESS = Path(os.environ.get("LLMPERF_LM_EVAL", ROOT / ".engines" / "lm_eval"))
pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]

ONE_START = f"""
import pytest
from pytest_llmperf import closed, sharegpt, vllm

DRAFT = {{"method": "draft_model", "model": "{MODELS}/sums-draft", "num_speculative_tokens": 3}}
ENGINE = vllm("{MODELS}/sums", max_model_len=512, async_scheduling=False, speculative_config=DRAFT)
CHAINS = sharegpt(path="{TASKS}/sums_chains.json", arrivals=closed(2), requests=8)
pytestmark = [pytest.mark.cpu, pytest.mark.engine(ENGINE)]

def test_acceptance(engine, perf):
    run = perf.measure(engine, CHAINS)
    perf.check(run, "spec_acceptance_rate >= 30%", "spec_acceptance_rate <= 90%")

def test_accuracy(engine, perf):
    answers = perf.accuracy(engine, "{TASKS}/sums.yaml", at_least=0.5)
    assert answers.share <= 0.95
"""

GUARDED = f"""
import pytest
from pytest_llmperf import closed, sharegpt, vllm

CHAINS = sharegpt(path="{TASKS}/sums_chains.json", arrivals=closed(2), requests=8)

@pytest.mark.cpu
def test_quantised(perf):
    perf.claim(vllm("QUANTISED", max_model_len=512), vllm("{MODELS}/sums", max_model_len=512), CHAINS,
               "tpot_mean(a) / tpot_mean(b) <= 3", allow={{"ttft_p50": 5.0}}, runs=2,
               guards={{"accuracy({TASKS}/sums.yaml)": 0.01}})
"""

OTHER_DRAFT = ONE_START.replace(f"{MODELS}/sums-draft", "OTHER").replace("test_accuracy", "ignored")


def damaged(model, folder, layer, matrices=("mlp.down_proj",)):
    """A copy of a model in which the named matrices of a layer are 0, so this part of the layer adds nothing."""
    shutil.copytree(model, folder)
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[:8], "little")
    tensors = json.loads(content[8:8 + length])
    for matrix in matrices:
        start, end = tensors[f"model.layers.{layer}.{matrix}.weight"]["data_offsets"]
        content[8 + length + start:8 + length + end] = bytes(end - start)
    path.write_bytes(content)
    return folder


@pytest.fixture
def harness():
    if not (HARNESS / "bin" / "python").exists():
        pytest.skip(f"{HARNESS} is missing: make lm-eval")
    return f"--llmperf-engine=lm_eval={HARNESS}"


def test_acceptance_and_accuracy_of_trained_models_leave_room_for_losses(run_real, harness):
    result, tags = run_real(ONE_START, harness)
    assert tags == {"test_acceptance": set(), "test_accuracy": set()}
    assert result.ret == 0


@pytest.mark.thorough
def test_eight_bit_model_keeps_accuracy(run_real, harness):
    result, _ = run_real(GUARDED.replace("QUANTISED", f"{MODELS}/sums-int8"), harness)
    result.stdout.fnmatch_lines(["accuracy(sums) *PASS*"])


@pytest.mark.thorough
def test_damaged_layer_of_quantised_model_fails_accuracy_guard(run_real, harness, tmp_path):
    model = damaged(MODELS / "sums-int8", tmp_path / "damaged", layer=2)
    result, tags = run_real(GUARDED.replace("QUANTISED", str(model)), harness)
    assert tags == {"test_quantised": {"failure"}}
    result.stdout.fnmatch_lines(["accuracy(sums) *FAIL*", "*A answers fewer questions right*meets the claim*"])


@pytest.mark.thorough
def test_draft_of_another_model_fails_acceptance_check(run_real, tmp_path):
    model = damaged(MODELS / "sums-draft", tmp_path / "other", layer=0, matrices=("self_attn.o_proj", "mlp.down_proj"))
    result, tags = run_real(OTHER_DRAFT.replace("OTHER", str(model)), "-k", "acceptance")
    assert tags == {"test_acceptance": {"failure"}}
    result.stdout.fnmatch_lines(["spec_acceptance_rate *30 % *FAIL*"])
