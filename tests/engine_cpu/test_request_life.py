"""Cancellations, several answers to a request, stop sequences and LoRA adapters on real vLLM."""

import json
import struct
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real_engine, pytest.mark.thorough, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
RANK = 4
SUITE = """
import pytest
from dataclasses import replace
from pytest_llmperf import across_models, cancelled, closed, endpoint, random_tokens, vllm

pytestmark = [pytest.mark.cpu]
SPEC = {spec}
CHAT = random_tokens(input=20, output=40, arrivals=closed(4), requests=40, text={text})
"""
CANCELLED = SUITE + """
def test_blocks_of_cancelled_requests_are_freed(perf):
    run = perf.measure(SPEC, cancelled(CHAT, share=0.5, after_tokens=5), runs=2)
    tokens = {{record.output_tokens for record in run.records if record.outcome.value == "cancelled by the client"}}
    print("cancelled after", sorted(tokens))
    assert len(run.values("cancelled_rate")) == 2
    perf.check(run, "cancelled_rate >= 20%", "error_rate == 0", "ttft_p50 <= 10s", "e2el_p50 <= 60s")
"""
FIELDS = SUITE + """
@pytest.mark.engine(SPEC)
@pytest.mark.parametrize("fields", [{{"n": 3, "temperature": 0.8}}, {{"stop": ["1"]}}], ids=["n", "stop"])
def test_fields_of_the_request(perf, engine, fields):
    service = endpoint(engine.url, model=engine.model, fields=fields, text=True)
    run = perf.measure(service, CHAT, runs=1)
    answers = {{record.output_tokens for record in run.records}}
    print(sorted(fields), "output tokens", sorted(answers))
    assert answers == {{120}} if "n" in fields else min(answers) < 40
    perf.check(run, "error_rate == 0", "tpot_p50 <= 10s")
"""
ADAPTER = SUITE + """
def test_adapters_share_traffic(perf):
    run = perf.measure(SPEC, across_models(CHAT, {{"": 0.5, "sums-lora": 0.5}}), runs=1)
    models = {{(record.asked_model, record.models) for record in run.records}}
    print("models", len(models))
    assert {{asked for asked, _ in models}} == {{"", "sums-lora"}}
    assert all(names == (asked,) for asked, names in models if asked)
    perf.check(run, "error_rate == 0")
"""
STRANGER = ADAPTER.replace('"sums-lora": 0.5', '"other-lora": 0.5')


def adapter(folder, model):
    """A LoRA adapter of random weights for the query projections of a model, as PEFT writes it."""
    config = json.loads((model / "config.json").read_text())
    size, layers = config["hidden_size"], config["num_hidden_layers"]
    rows = config["num_attention_heads"] * (config.get("head_dim") or size // config["num_attention_heads"])
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK, "bias": "none",
        "target_modules": ["q_proj"], "base_model_name_or_path": str(model)}))
    header, data = {}, b""
    for layer in range(layers):
        for part, shape in (("A", (RANK, size)), ("B", (rows, RANK))):
            values = [((7 * place + layer) % 13 - 6) / 100 for place in range(shape[0] * shape[1])]
            header[f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{part}.weight"] = {
                "dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * len(values)]}
            data += struct.pack(f"<{len(values)}f", *values)
    head = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    return folder


def test_real_vllm_frees_blocks_of_cancelled_requests(run_real):
    result, tags = run_real(CANCELLED.format(spec='vllm("tiny", max_model_len=512)', text=False))
    assert tags == {"test_blocks_of_cancelled_requests_are_freed": set()}, result.outlines
    result.stdout.fnmatch_lines(["cancelled after*[[]5*"])


def test_real_vllm_gives_several_answers_and_stops_at_text(run_real):
    model = ROOT / "suites" / "models" / "sums"
    result, tags = run_real(FIELDS.format(spec=f'vllm("{model}", max_model_len=512)', text=True))
    assert list(tags.values()) == [set(), set()], result.outlines


def test_real_vllm_answers_by_adapter_that_request_names(run_real, tmp_path):
    model = ROOT / "suites" / "models" / "sums"
    lora = adapter(tmp_path / "lora", model)
    spec = f'vllm("{model}", max_model_len=512, enable_lora=True, max_lora_rank=8, lora_modules=["sums-lora={lora}"])'
    result, tags = run_real(ADAPTER.format(spec=spec, text=True))
    assert tags == {"test_adapters_share_traffic": set()}, result.outlines
    result, tags = run_real(STRANGER.format(spec=spec, text=True))
    assert tags == {"test_adapters_share_traffic": {"error"}}, result.outlines
    result.stdout.fnmatch_lines(["*does not serve 'other-lora'*"])
