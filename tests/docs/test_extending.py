"""docs/extending.md: its engine makes a command line, and its table has every member of an adapter."""

import inspect
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_llmperf.engines.adapter import EngineAdapter, Placement
from pytest_llmperf.engines.process.environment import Environment
from pytest_llmperf.model.request import Request

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "extending.md"


@pytest.fixture
def names(page_blocks):
    """What the block with the engine defines."""
    (block,) = [block for block in page_blocks(PAGE) if "class TransformersServe" in block.text]
    names = {}
    exec(compile(block.text, f"{PAGE.name}:{block.line}", "exec"), names)
    return names


def test_documented_engine_turns_spec_into_command_line_and_request(names):
    spec = names["transformers_serve"]("tiny", continuous_batching=True, model_timeout=-1)
    environment = Environment(("python",), True, None, "here")
    model = SimpleNamespace(path_or_hub_id="/models/tiny")
    adapter = names["TRANSFORMERS_SERVE"]
    arguments = adapter.arguments(spec, Placement("cpu", 8123, "nonce", model, environment))
    assert arguments[:4] == ["-m", "transformers.cli.transformers", "serve", "/models/tiny@main"]
    assert arguments[arguments.index("--port"):][:4] == ["--port", "8123", "--device", "cpu"]
    assert arguments[-2:] == ["--continuous-batching", "--model-timeout=-1"]
    path, body = adapter.post(spec, Request(0, "some words", 7, None), "/models/tiny@main")
    assert path == "/v1/completions"
    assert json.loads(json.loads(body)["generation_config"])["min_new_tokens"] == 7


def test_table_of_engine_members_is_complete():
    rows = [line for line in PAGE.read_text().partition("| member |")[2].splitlines() if line.startswith("| `")]
    documented = {name.strip("` ") for row in rows for name in row.split("|")[1].split(",")}
    functions = {name for name, _ in inspect.getmembers(EngineAdapter, inspect.isfunction) if not name.startswith("_")}
    annotated = {name for base in EngineAdapter.__mro__ for name in inspect.get_annotations(base)}
    assert documented == functions | annotated


@pytest.mark.parametrize("example", [
    "metric_and_sink/llmperf_influx/metric.py", "kind/pyproject.toml", "engine/llmperf_transformers_serve/engine.py",
])
def test_page_shows_the_example_package(example):
    shown = PAGE.read_text()
    code = (DOCS / "examples" / example).read_text()
    assert all(line in shown for line in code.splitlines() if "=" in line and "minversion" not in line and
               "power_w" not in line)
