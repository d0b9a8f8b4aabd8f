"""docs/extending.md: its engine makes a command line, and its table has every member of an adapter."""

import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_llmperf.engines import vllm_adapter
from pytest_llmperf.engines.adapter import EngineAdapter, Placement
from pytest_llmperf.engines.environment import Environment

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "extending.md"


@pytest.fixture
def names(page_blocks):
    """What the block with the engine defines."""
    (block,) = [block for block in page_blocks(PAGE) if "class TensorrtLlm" in block.text]
    names = {}
    exec(compile(block.text, f"{PAGE.name}:{block.line}", "exec"), names)
    return names


def test_documented_engine_turns_spec_into_command_line(names):
    wanted = names["tensorrt_llm"]("llama-3.1-8b", max_batch_size=64, schedule_offset="-1_--x")
    environment = Environment(("python",), True, None, "here")
    model = SimpleNamespace(path_or_hub_id="/models/llama")
    arguments = names["TENSORRT_LLM"].arguments(wanted, Placement("h200", 8123, "nonce", model, environment))
    assert arguments[:4] == ["-m", "tensorrt_llm.commands.serve", "serve", "/models/llama"]
    assert arguments[arguments.index("--port"):][:2] == ["--port", "8123"]
    assert arguments[arguments.index("--max_batch_size"):][:2] == ["--max_batch_size", "64"]
    assert arguments[arguments.index("--served_model_name"):][:2] == ["--served_model_name", "nonce"]
    assert "--schedule_offset=-1_--x" in arguments


def test_table_of_engine_members_is_complete():
    rows = [line for line in PAGE.read_text().partition("| member |")[2].splitlines() if line.startswith("| `")]
    documented = {name.strip("` ") for row in rows for name in row.split("|")[1].split(",")}
    functions = {name for name, _ in inspect.getmembers(EngineAdapter, inspect.isfunction) if not name.startswith("_")}
    assert documented == functions | set(EngineAdapter.__annotations__)


def test_documented_counter_names_equal_vllm_names(names):
    assert set(names["TENSORRT_LLM"].counter_names) <= set(vllm_adapter.COUNTERS)


@pytest.mark.parametrize("example", ["metric_and_sink/llmperf_influx/metric.py", "kind/pyproject.toml"])
def test_page_shows_the_example_package(example):
    shown = PAGE.read_text()
    code = (DOCS / "examples" / example).read_text()
    assert all(line in shown for line in code.splitlines() if "=" in line and "minversion" not in line and
               "power_w" not in line)
