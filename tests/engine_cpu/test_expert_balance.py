"""Real SGLang counts the tokens of the ranks that hold experts, and the run has their balance.

SGLang's PyTorch code for a CPU serves a mixture of experts on ranks that hold every expert. It refuses the experts of
other ranks (`index -1 is out of bounds` in `moe_forward_native`), so expert parallelism of two ranks needs GPUs.
"""

import json
from pathlib import Path

import pytest

from pytest_llmperf.engines.models import resolve_model

ENGINES = ["sglang"]
pytestmark = [pytest.mark.real_engine, pytest.mark.thorough, pytest.mark.timeout(900)]

MIXTURE = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 128, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "max_window_layers": 4, "use_sliding_window": False,
}  # fmt: skip

BALANCED = """
import pytest
from pytest_llmperf import closed, random_tokens, sglang

pytestmark = [pytest.mark.cpu]

def test_balance_of_one_rank(perf):
    engine = sglang("./mixture", context_length=4096, load_format="dummy",
                    expert_balancedness_report_mode="prometheus")
    run = perf.measure(engine, random_tokens(input=50, output=16, arrivals=closed(2), requests=12), runs=1)
    perf.check(run, "expert_balance == 100%", "expert_parallel == 0", "error_rate == 0")
    assert run.runs[0].counters["expert_balance_steps"] >= 12 * 16 / 2  # two requests in flight, a token a step
"""


@pytest.fixture
def mixture(pytester) -> Path:
    """A small mixture of experts with the tokenizer of the shape `tiny`."""
    folder = pytester.mkdir("mixture")
    for path in Path(resolve_model("tiny", pytester.path / "models").path_or_hub_id).glob("*.json"):
        config = MIXTURE if path.name == "config.json" else {}
        (folder / path.name).write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


@pytest.mark.usefixtures("mixture")
def test_sglang_rank_with_all_experts_has_balance_of_1(run_real):
    result, tags = run_real(BALANCED)
    assert tags == {"test_balance_of_one_rank": set()}
    result.stdout.fnmatch_lines(["*expert_balance*100 %*PASS*"])
