"""The page itself shows the family of a server, and each family's names have one meaning."""

import pytest

from pytest_llmperf.engines.endpoint.reader import EndpointReader, family_of, models_of
from pytest_llmperf.metrics.server import SERVER, server_values
from pytest_llmperf.model.api import DEFAULT
from pytest_llmperf.telemetry.prometheus import parse

ENDPOINT = EndpointReader(DEFAULT)
START = "process_start_time_seconds 1764054321\n"
PAGES = {
    "vLLM": """vllm:prompt_tokens_total{model_name="m",engine="0"} 100
vllm:prompt_tokens_cached_total{model_name="m"} 40
vllm:generation_tokens_total{model_name="m"} 7
vllm:request_success_total{model_name="m",finished_reason="length"} 2
vllm:num_requests_running{model_name="m"} 3
""",
    "SGLang": """sglang:prompt_tokens_total{model_name="m"} 100
sglang:cached_tokens_total{model_name="m",cache_source="device"} 40
sglang:generation_tokens_total{model_name="m"} 7
sglang:num_requests_total{model_name="m"} 2
sglang:num_running_reqs{model_name="m"} 3
""",
    "TGI": """tgi_request_input_length_bucket{le="10"} 1
tgi_request_input_length_sum 100
tgi_request_generated_tokens_sum 7
tgi_request_success{kind="stream"} 2
tgi_batch_current_size 3
""",
    "Dynamo": """dynamo_frontend_input_sequence_tokens_sum{model="m"} 100
dynamo_frontend_cached_tokens_sum{model="m"} 40
dynamo_frontend_output_tokens_total{model="m"} 7
dynamo_frontend_requests_total{model="m",status="success"} 2
dynamo_frontend_inflight_requests{model="m"} 3
""",
    "llm-d": """llm_d_epp_request_input_tokens_sum{model_name="m"} 100
llm_d_epp_request_cached_tokens_sum{model_name="m"} 40
llm_d_epp_request_output_tokens_sum{model_name="m"} 7
llm_d_epp_request_duration_seconds_count{model_name="m"} 2
llm_d_epp_request_running{model_name="m"} 3
inference_objective_input_tokens_sum{model_name="m"} 100
""",
    "llm-d before 0.9": """inference_objective_input_tokens_sum{model_name="m"} 100
inference_objective_prompt_cached_tokens_sum{model_name="m"} 40
inference_objective_output_tokens_sum{model_name="m"} 7
inference_objective_request_duration_seconds_count{model_name="m"} 2
inference_objective_running_requests{model_name="m"} 3
""",
}


@pytest.mark.parametrize("name", PAGES)
def test_page_of_each_family_gives_the_same_counters(name):
    page = parse(PAGES[name] + START)
    counters = ENDPOINT.counters(page)
    assert family_of(page).name == name.removesuffix(" before 0.9")
    assert counters["prompt_tokens"] == 100
    assert counters["generation_tokens"] == 7
    assert counters["requests_finished"] == 2
    assert counters["process_start_time_s"] == 1764054321
    assert ENDPOINT.gauges(page)["running"] == 3
    assert server_values(counters)["prefix_cache_hit_rate"] == (None if name == "TGI" else 0.4)
    assert models_of(page) == (set() if name == "TGI" else {"m"})


def test_page_of_a_dynamo_worker_has_the_names_of_an_engine():
    page = parse('dynamo_component_requests_total{dynamo_endpoint="generate"} 9\n' + PAGES["vLLM"])
    assert family_of(page).name == "vLLM"


def test_page_without_a_known_name_leaves_every_metric_unseen():
    page = parse("http_requests_total 5\n" + START)
    assert family_of(page) is None
    assert ENDPOINT.counters(page) == {"process_start_time_s": 1764054321}
    assert ENDPOINT.gauges(page) == {}
    assert set(server_values(ENDPOINT.counters(page)).values()) == {None}
    assert set(server_values({})) == set(SERVER)
