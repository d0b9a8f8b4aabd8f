"""SGLang's command line, environment, routes, counters and resolved configuration."""

import json
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from pytest_llmperf.engines.adapter import Placement
from pytest_llmperf.engines.models import ResolvedModel
from pytest_llmperf.engines.process.environment import Environment
from pytest_llmperf.engines.sglang.adapter import SglangAdapter
from pytest_llmperf.engines.spec import sglang
from pytest_llmperf.errors import EngineError, SpecError
from pytest_llmperf.metrics.server import server_values
from pytest_llmperf.model.request import Request
from pytest_llmperf.telemetry.prometheus import deltas, parse

VENV = Environment(("/v/bin/python",), True, None, "/v")
COMMAND = Environment(("/bin/sglang",), False, None, "sglang")
DUMMY = ResolvedModel("/models/llama", "dummy", None, "llama-3.1-8b")
ADAPTER = SglangAdapter()
PROMPT = Request(0, (5, 6, 7), 16, 3)


def placement(kind="h200", environment=VENV, lmcache=None):
    return Placement(kind, 8123, "llama-abc", DUMMY, environment, lmcache)


def options(arguments):
    """--x value pairs of a command line."""
    flags, last = {}, ""
    for word in arguments[arguments.index("--model-path") :]:
        if word.startswith("--"):
            flags[word], last = True, word
        else:
            flags[last] = word
    return flags


def client(answers):
    """A client whose server has one answer a path, and 404 for every other."""
    return httpx.Client(
        base_url="http://h",
        transport=httpx.MockTransport(lambda request: answers.get(request.url.path, httpx.Response(404))),
    )


def test_sglang_module_or_serve_command_follows_environment_type():
    spec = sglang("llama-3.1-8b")
    assert ADAPTER.arguments(spec, placement())[:2] == ["-m", "sglang.launch_server"]
    assert ADAPTER.arguments(spec, placement(environment=COMMAND))[0] == "serve"
    assert options(ADAPTER.arguments(spec, placement()))["--model-path"] == "/models/llama"


def test_sglang_gpu_command_leaves_device_attention_and_schedule_to_the_engine():
    flags = options(ADAPTER.arguments(sglang("llama-3.1-8b"), placement()))
    assert flags["--port"] == "8123"
    assert flags["--served-model-name"] == "llama-abc"
    assert flags["--load-format"] == "dummy"
    assert flags["--enable-metrics"] is flags["--enable-cache-report"] is True
    assert not {"--device", "--attention-backend", "--disable-overlap-schedule", "--skip-server-warmup"} & set(flags)
    assert "OMP_NUM_THREADS" not in ADAPTER.environment(sglang("llama-3.1-8b"), placement())


def test_on_a_cpu_and_the_specs_flags_come_last():
    flags = options(ADAPTER.arguments(sglang("tiny", max_total_tokens=9000), placement("cpu")))
    assert flags["--attention-backend"] == "torch_native"
    assert flags["--max-total-tokens"] == "9000"
    env = ADAPTER.environment(sglang("tiny"), placement("cpu"))
    assert env["OMP_NUM_THREADS"] == "1"
    assert "SGLANG_CPU_OMP_THREADS_BIND" not in env


@pytest.mark.parametrize("flag", ["tp_size", "tensor_parallel_size", "tp"])
def test_sglang_ranks_are_bound_to_separate_cpu_cores(flag):
    env = ADAPTER.environment(sglang("tiny", **{flag: 2}), placement("cpu"))
    assert env["SGLANG_CPU_OMP_THREADS_BIND"] == "0|1"


def test_health_is_asked_without_a_generation():
    assert ADAPTER.environment(sglang("m"), placement())["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "0"
    assert ADAPTER.ready(client({"/health": httpx.Response(200)}))
    assert not ADAPTER.ready(client({"/health": httpx.Response(503)}))


def test_a_crash_waits_for_no_dumps():
    env = ADAPTER.environment(sglang("m"), placement())
    assert env["SGLANG_PYSPY_DUMP_BEFORE_CRASH"] == env["SGLANG_CUDA_COREDUMP_BEFORE_CRASH"] == "0"


def test_sglang_requests_use_generate_route_without_tokenizer():
    path, body = ADAPTER.post(sglang("m"), PROMPT, "nonce")
    assert path == "/v1/completions"
    assert json.loads(body)["model"] == "nonce"
    path, body = ADAPTER.post(sglang("m", skip_tokenizer_init=True), PROMPT, "nonce")
    assert path == "/generate"
    sampling = {"max_new_tokens": 16, "ignore_eos": True, "temperature": 0}
    assert json.loads(body) == {"input_ids": [5, 6, 7], "sampling_params": sampling, "stream": True}


@pytest.mark.parametrize(("status", "done"), [(200, True), (404, False)])
def test_the_cache_is_flushed_or_the_server_cannot(status, done):
    assert ADAPTER.reset_cache(client({"/flush_cache": httpx.Response(status)}), external=True) is done


def test_a_cache_that_was_not_flushed_is_an_error():
    with pytest.raises(EngineError, match=r"did not flush its cache .*pending requests"):
        ADAPTER.reset_cache(client({"/flush_cache": httpx.Response(400, text="pending requests")}), external=True)


PAGE = """
sglang:prompt_tokens_total{is_streaming="false"} 100
sglang:prompt_tokens_total{is_streaming="true"} 2900
sglang:generation_tokens_total{is_streaming="true"} 320
sglang:num_requests_total{is_streaming="true"} 20
sglang:queue_time_seconds_sum{tp_rank="0"} 2.5
sglang:queue_time_seconds_sum{tp_rank="1"} 2.5
sglang:queue_time_seconds_count{tp_rank="0"} 20
sglang:token_usage{tp_rank="0"} 0.25
sglang:cache_hit_rate 0.99
"""


def metrics_of(page, earlier_page=PAGE):
    return server_values(deltas(ADAPTER.counters(parse(earlier_page)), ADAPTER.counters(parse(page))))


def test_counters_under_the_names_of_every_engine():
    counters = ADAPTER.counters(parse(PAGE))
    assert counters["prompt_tokens"] == 3000
    assert counters["requests_finished"] == 20
    assert counters["queue_time_s_sum"] == 2.5  # both ranks say the same
    assert counters["preemptions"] == counters["prompt_tokens_cached"] == counters["spec_draft_tokens"] == 0
    assert ADAPTER.gauges(parse(PAGE)) == {"kv_usage": 0.25}
    assert ADAPTER.counters(parse("other_total 5\n")) == {}


def test_sglang_gauges_show_maximum_usage_and_sum_of_requests():
    page = """
sglang:token_usage{dp_rank="0",tp_rank="0"} 0.6
sglang:token_usage{dp_rank="1",tp_rank="0"} 0.7
sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 3
sglang:num_running_reqs{dp_rank="1",tp_rank="0"} 3
"""
    assert ADAPTER.gauges(parse(page)) == {"kv_usage": 0.7, "running": 6}


def ranks(sample, *values):
    """One line for each (dp_rank, pp_rank, tp_rank, value)."""
    lines = (f'{sample}{{dp_rank="{dp}",pp_rank="{pp}",tp_rank="{tp}"}} {value}\n' for dp, pp, tp, value in values)
    return "".join(lines).replace('dp_rank="None",', "")


def test_under_dp_attention_every_data_parallel_rank_is_counted():
    """tp_rank counts on over them; what ranks beside the first of each say is the same again, or nothing yet."""
    page = PAGE + ranks("sglang:num_retracted_requests_total", (0, 0, 1, 7), (0, 0, 0, 1), (1, 0, 3, 5), (1, 0, 2, 5))
    assert ADAPTER.counters(parse(page))["preemptions"] == 6
    only_second = PAGE + ranks("sglang:num_retracted_requests_total", (1, 0, 2, 5))
    assert ADAPTER.counters(parse(only_second))["preemptions"] == 5
    assert ADAPTER.gauges(parse(ranks("sglang:num_running_reqs", (0, 0, 0, 3), (1, 0, 2, 4)))) == {"running": 7}


def test_pipeline_stages_have_the_same_requests():
    page = ranks("sglang:num_running_reqs", (None, 0, 0, 3), (None, 1, 0, 3), (None, 0, 10, 3), (None, 0, 2, 3))
    assert ADAPTER.gauges(parse(page)) == {"running": 3}


def test_sglang_gauge_with_priorities_excludes_separate_sums():
    counts = [("", 4), ("0", 1), ("5", 3)]
    page = "".join(f'sglang:num_running_reqs{{priority="{of}",tp_rank="0"}} {count}\n' for of, count in counts)
    assert ADAPTER.gauges(parse(page)) == {"running": 4}


@pytest.mark.parametrize(
    ("sources", "cached", "external"),
    [
        ({"device": 1200}, 1200, 0),
        ({"device": 200, "storage": 1000}, 1200, 1000),
        ({"device": 200, "host": 1000, "total": 1200}, 1200, 1000),
        ({"total": 1200}, 1200, None),
        ({"device": 200, "total": 1200}, 1200, None),
    ],
)
def test_sglang_cached_tokens_are_split_by_source(sources, cached, external):
    lines = [f'sglang:cached_tokens_total{{cache_source="{name}"}} {value}' for name, value in sources.items()]
    counters = ADAPTER.counters(parse(PAGE + "\n".join(lines) + "\n"))
    assert counters["prompt_tokens_cached"] == cached
    assert counters.get("external_cache_hits") == external
    assert counters["external_cache_queries"] == 3000 - sources.get("device", 0)


def test_cached_tokens_are_counted_by_tier_and_moved_bytes_over_all_ranks():
    lines = ['sglang:cached_tokens_total{cache_source="device"} 700',
             'sglang:cached_tokens_total{cache_source="host"} 200',
             'sglang:cached_tokens_total{cache_source="storage_file"} 100',
             'sglang:load_back_bytes_total{tp_rank="0"} 5', 'sglang:load_back_bytes_total{tp_rank="1"} 6',
             'sglang:hicache_backup_bytes_total{tp_rank="0"} 9']
    counters = ADAPTER.counters(parse(PAGE + "\n".join(lines) + "\n"))
    assert [counters[f"cached_tokens_{tier}"] for tier in ("device", "host", "disk")] == [700, 200, 100]
    assert (counters["kv_loaded_bytes"], counters["kv_stored_bytes"]) == (11, 9)


@pytest.mark.parametrize("labels", ["", '{model_name="m"}'])
def test_cached_tokens_of_no_stated_source_are_cached_all_the_same(labels):
    counters = ADAPTER.counters(parse(PAGE + f"sglang:cached_tokens_total{labels} 1200\n"))
    assert counters["prompt_tokens_cached"] == 1200
    assert not {"external_cache_hits", "cached_tokens_device"} & counters.keys()


def test_sglang_hit_rate_is_computed_from_token_counters():
    more = PAGE.replace("2900", "3900") + 'sglang:cached_tokens_total{cache_source="device"} 250\n'
    assert metrics_of(more)["prefix_cache_hit_rate"] == 0.25


def test_acceptance_follows_from_tokens_and_verification_steps():
    """10 requests more, each of 1 prefill token and 6 steps of 4 tokens: of 4 guesses a step 3 are right."""
    drafts = "sglang:spec_verify_calls_total {}\nsglang:spec_num_draft_tokens 5\n"
    earlier_page = PAGE + drafts.format(100)
    after = PAGE.replace("} 320", "} 570").replace('requests_total{is_streaming="true"} 20', "requests_total 30")
    metrics = metrics_of(after + drafts.format(160), earlier_page)
    assert metrics["spec_acceptance_length"] == 4
    assert metrics["spec_acceptance_rate"] == 0.75
    of_two_ranks = drafts.format(160) + 'sglang:spec_num_draft_tokens{dp_rank="1"} 5\n'
    assert metrics_of(after + of_two_ranks, earlier_page)["spec_acceptance_rate"] == 0.75


# From the page of SGLang 0.5.23's own collector, two prefills and three decode steps later.
BALANCE_PAGE = """
sglang:eplb_balancedness_count{forward_mode="extend",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 1.0
sglang:eplb_balancedness_sum{forward_mode="extend",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 0.9
"""
LATER_BALANCE_PAGE = """
sglang:eplb_balancedness_count{forward_mode="extend",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 3.0
sglang:eplb_balancedness_sum{forward_mode="extend",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 2.8
sglang:eplb_balancedness_count{forward_mode="decode",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 3.0
sglang:eplb_balancedness_sum{forward_mode="decode",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 2.1
"""


def test_expert_balance_is_mean_over_steps_of_both_modes():
    metrics = metrics_of(PAGE + LATER_BALANCE_PAGE, PAGE + BALANCE_PAGE)
    assert metrics["expert_balance"] == pytest.approx((2.8 + 2.1 - 0.9) / 5)


def test_expert_balance_is_missing_without_summary_or_steps():
    assert metrics_of(PAGE)["expert_balance"] is None
    assert metrics_of(PAGE + BALANCE_PAGE, PAGE + BALANCE_PAGE)["expert_balance"] is None


@pytest.mark.parametrize(("ranks", "parallel"), [(1, "False"), (2, "True")])
def test_sglang_expert_parallelism_follows_resolved_size(ranks, parallel):
    server = client({"/server_info": httpx.Response(200, json=INFO | {"ep_size": ranks})})
    assert ADAPTER.resolved(server)["enable_expert_parallel"] == parallel


def test_retractions_are_preemptions():
    assert metrics_of(PAGE + 'sglang:num_retracted_requests_total{tp_rank="0"} 3\n')["preemptions"] == 3


INFO = {
    "model_path": "/models/llama", "version": "0.5.23", "page_size": 16, "max_total_num_tokens": 40000,
    "chunked_prefill_size": 4096, "quantization": None, "schedule_policy": "lpm", "api_key": "hidden",
}  # fmt: skip


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_sglang_resolved_configuration_is_read_from_server_info(path):
    server = client({path: httpx.Response(200, json=INFO)})
    assert ADAPTER.resolved(server) == {
        "version": "0.5.23", "page_size": "16", "chunked_prefill_size": "4096", "schedule_policy": "lpm",
        "block_size": "16", "num_gpu_blocks": "2500", "max_num_batched_tokens": "4096",
        "kv_cache_size_tokens": "40000",
    }  # fmt: skip
    assert ADAPTER.loaded(server) == "/models/llama"


def test_prompts_that_are_not_divided_have_no_budget():
    server = client({"/server_info": httpx.Response(200, json=INFO | {"chunked_prefill_size": -1})})
    assert "max_num_batched_tokens" not in ADAPTER.resolved(server)


@pytest.mark.parametrize("sizes", [{"dp_size": 2}, {"dp_size": 1, "attn_dp_size": 2}], ids=["0.5.15", "0.5.23"])
def test_sglang_dp_attention_excludes_divided_values_from_configuration(sizes):
    """dp_size=2, chunked_prefill_size=8192: told as 4096, and by 0.5.23 as dp_size=1, and no other server's."""
    server = client({"/server_info": httpx.Response(200, json=INFO | {"enable_dp_attention": True, **sizes})})
    facts = ADAPTER.resolved(server)
    assert not {"chunked_prefill_size", "dp_size"} & set(facts)
    assert facts["max_num_batched_tokens"] == "4096"


@pytest.mark.parametrize("answer", [httpx.Response(404), httpx.Response(200, text="<html>")])
def test_malformed_sglang_server_info_gives_no_configuration(answer):
    server = client({"/server_info": answer})
    assert ADAPTER.resolved(server) == {}
    assert ADAPTER.loaded(server) is None


def test_lmcache_is_named_by_a_file_and_never_in_process():
    beside = SimpleNamespace(port=1, launch=SimpleNamespace(config_file=Path("/run/lmcache.yaml")))
    flags = options(ADAPTER.arguments(sglang("m").with_lmcache(), placement(lmcache=beside)))
    assert flags["--enable-lmcache"] is True
    assert flags["--lmcache-config-file"] == "/run/lmcache.yaml"
    with pytest.raises(SpecError, match="as a server only"):
        ADAPTER.arguments(sglang("m").with_lmcache(in_process=True), placement())


@pytest.fixture
def bundle(tmp_path):
    return Environment(("/opt/torch/bin/python3",), True, tmp_path, "a bundle")


def test_a_bundle_without_flashinfer_is_served_by_other_backends(bundle):
    flags = options(ADAPTER.arguments(sglang("llama-3.1-8b"), placement(environment=bundle)))
    assert flags["--attention-backend"] == "triton"
    assert flags["--sampling-backend"] == "pytorch"
    env = ADAPTER.environment(sglang("llama-3.1-8b"), placement(environment=bundle))
    assert env["SGLANG_IS_FLASHINFER_AVAILABLE"] == "false"
    chosen_backend = options(
        ADAPTER.arguments(sglang("llama-3.1-8b", attention_backend="fa3"), placement(environment=bundle))
    )
    assert chosen_backend["--attention-backend"] == "fa3"


def test_an_environment_with_flashinfer_is_left_alone(bundle):
    (bundle.pythonpath / "flashinfer_python-0.6.12.dist-info").mkdir()
    for environment in (bundle, VENV, COMMAND):
        assert "--attention-backend" not in options(
            ADAPTER.arguments(sglang("llama-3.1-8b"), placement(environment=environment))
        )
        assert "SGLANG_IS_FLASHINFER_AVAILABLE" not in ADAPTER.environment(
            sglang("llama-3.1-8b"), placement(environment=environment)
        )
