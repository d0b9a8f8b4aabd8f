"""The engine with static batches: command line, counters, environment, and arguments that are refused."""

from types import SimpleNamespace

import pytest

from pytest_llmperf import random_tokens, transformers
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.adapter import Placement
from pytest_llmperf.engines.adapters import adapter_of
from pytest_llmperf.engines.models import resolve_model
from pytest_llmperf.engines.process.environment import Environment, Installations
from pytest_llmperf.engines.process.resolution import Resolver
from pytest_llmperf.errors import EnvironmentMissing, SpecError
from pytest_llmperf.session.arguments import check_requests
from pytest_llmperf.telemetry.prometheus import parse
from pytest_llmperf.workload import closed

PAGE = """# TYPE static:prompt_tokens_total counter
static:prompt_tokens_total 320
# TYPE static:generation_tokens_total counter
static:generation_tokens_total 704
# TYPE static:requests_finished_total counter
static:requests_finished_total 8
# TYPE static:steps_total counter
static:steps_total 256
# TYPE static:running gauge
static:running 8
# TYPE static:waiting gauge
static:waiting 2
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1764142200.5
"""


def test_arguments_name_batch_size_and_port(tmp_path):
    spec = transformers("tiny", max_batch_size=4)
    model = SimpleNamespace(path_or_hub_id="/models/tiny")
    placement = Placement("cpu", 8123, "nonce", model, Environment(("python",), True, None, "here"))
    script, *arguments = adapter_of(spec.engine).arguments(spec, placement)
    assert script.endswith("transformers/server.py")
    assert arguments[0] == "/models/tiny"
    for option, value in (("--port", "8123"), ("--max-batch-size", "4"), ("--device", "cpu"), ("--dtype", "bfloat16")):
        assert arguments[arguments.index(option) + 1] == value


def test_page_of_static_server_gives_counters_and_gauges():
    adapter, scrape = adapter_of("transformers"), parse(PAGE)
    assert adapter.counters(scrape) == {
        "prompt_tokens": 320, "generation_tokens": 704, "requests_finished": 8, "engine_steps": 256,
        "process_start_time_s": 1764142200.5,
    }
    assert adapter.gauges(scrape) == {"running": 8, "waiting": 2}


def test_environment_of_vllm_also_has_transformers(tmp_path):
    python = tmp_path / ".engines" / "vllm-cpu" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert Installations({}, tmp_path, "cpu").find_environment("transformers").prefix == (str(python),)


def test_missing_transformers_names_every_place(tmp_path):
    with pytest.raises(EnvironmentMissing, match=r"transformers-cpu.*vllm-cpu"):
        Installations({}, tmp_path, "cpu").find_environment("transformers")


@pytest.mark.parametrize(("arguments", "words"), [
    ({"max_batch_size": 0}, "max_batch_size=0"), ({"max_batch_size": "8"}, "max_batch_size='8'"),
    ({"batch_wait_ms": -1}, "batch_wait_ms=-1"),
])
def test_wrong_argument_is_refused_with_value(arguments, words):
    with pytest.raises(SpecError, match=words):
        transformers("tiny", **arguments)


def test_emulator_refuses_static_batches(tmp_path):
    with pytest.raises(SpecError, match="does not know transformers"):
        Resolver(Settings(), tmp_path, emulated=True).of(transformers("tiny").on("h200"))


def test_request_beyond_positions_of_model_is_refused(tmp_path):
    long = random_tokens(input=40_000, output=8, arrivals=closed(1), requests=1)
    with pytest.raises(SpecError, match=r"48 tokens|40008 in all.*Shorten the requests"):
        check_requests(transformers("tiny"), long, resolve_model("tiny", tmp_path))
