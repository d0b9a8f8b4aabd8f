"""docs/adding_an_engine.md: its class is an adapter, and its builder's spec becomes a command line."""

import ast
import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_llmperf.engines import adapters, spec
from pytest_llmperf.engines.adapter import Adapter, Placement
from pytest_llmperf.engines.environment import Environment

PAGE = Path(__file__).parents[2] / "docs" / "adding_an_engine.md"


@pytest.fixture
def names(monkeypatch, page_blocks):
    """What the page's blocks define, run in order, each where the page puts it."""
    monkeypatch.setattr(adapters, "ENGINES", dict(adapters.ADAPTERS))
    names = {**vars(spec), "ENGINES": adapters.ADAPTERS}
    for block in page_blocks(PAGE):
        if block.language == "python":
            exec(compile(block.text, f"{PAGE.name}:{block.line}", "exec"), names)
    return names


def members(of):
    return {name for name, _ in inspect.getmembers(of, inspect.isfunction) if not name.startswith("_")}


ATTRIBUTES = set(Adapter.__annotations__)


def test_documented_adapter_has_every_member(names):
    adapter = names["TensorrtLlmAdapter"]
    assert members(Adapter) <= members(adapter)
    assert vars(adapter).keys() >= ATTRIBUTES
    for name in members(Adapter):
        assert list(inspect.signature(getattr(Adapter, name)).parameters) == \
            list(inspect.signature(getattr(adapter, name)).parameters), name


def test_documented_adapter_turns_spec_into_command_line(names, tmp_path):
    wanted = names["tensorrt_llm"]("llama-3.1-8b", max_batch_size=64, schedule_offset="-1_--x")
    environment = Environment(("python",), True, None, "here")
    model = SimpleNamespace(path_or_hub_id="/models/llama")
    placement = Placement("h200", 8123, "nonce", model, environment)
    arguments = adapters.adapter_of(wanted.engine).arguments(wanted, placement)
    assert arguments[:4] == ["-m", "tensorrt_llm.commands.serve", "serve", "/models/llama"]
    assert arguments[arguments.index("--port"):][:2] == ["--port", "8123"]
    assert arguments[arguments.index("--max_batch_size"):][:2] == ["--max_batch_size", "64"]
    assert arguments[arguments.index("--served_model_name"):][:2] == ["--served_model_name", "nonce"]
    assert "--schedule_offset=-1_--x" in arguments


def test_table_of_adapter_page_names_every_member():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    documented = {name.strip("` ") for row in rows for name in row.split("|")[1].split(",")}
    assert documented == members(Adapter) | ATTRIBUTES


def test_documented_counter_names_are_used_by_vllm_adapter(names):
    from pytest_llmperf.engines import vllm_adapter

    adapter_source = ast.dump(ast.parse(inspect.getsource(vllm_adapter)))
    assert all(repr(name) in adapter_source for name in names["COUNTERS"])
