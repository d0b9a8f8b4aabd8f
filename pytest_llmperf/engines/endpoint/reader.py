"""Reads a service that already runs. Its metrics page shows the family of the server, and so the names of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.control.reader import ServerReader
from pytest_llmperf.engines.sglang.adapter import SGLANG
from pytest_llmperf.engines.vllm.adapter import VLLM
from pytest_llmperf.model.api import Api
from pytest_llmperf.telemetry.prometheus import Scrape


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """Servers with the same names of metrics.

    Args:
        name: as the makers write it.
        prefix: the begin of names that only this family has.
        model_label: label that names the model; None for a family without a model label.
        names: reads a page of the family.
    """

    name: str
    prefix: str
    model_label: str | None
    names: ServerReader


class SummedNames(ServerReader):
    """Reads a page on which each counter and each gauge is the sum over the samples of one name.

    Args:
        counters, gauges: canonical name (metrics/server.py) → name on the page.
    """

    def __init__(self, counters: Mapping[str, str], gauges: Mapping[str, str]) -> None:
        self.counter_names, self.gauge_names = counters, gauges


#: An engine comes before what stands in front of it, because a page of Dynamo's workers has the names of both.
FAMILIES = (
    MetricFamily("vLLM", "vllm:", "model_name", VLLM),
    MetricFamily("SGLang", "sglang:", "model_name", SGLANG),
    # https://huggingface.co/docs/text-generation-inference/reference/metrics. TGI counts no cached tokens, and its page
    # has no start time.
    MetricFamily("TGI", "tgi_", None, SummedNames({
        "requests_finished": "tgi_request_success",
        "prompt_tokens": "tgi_request_input_length_sum",
        "generation_tokens": "tgi_request_generated_tokens_sum",
        "queue_time_s_sum": "tgi_request_queue_duration_sum",
        "queue_time_count": "tgi_request_queue_duration_count",
    }, {
        "running": "tgi_batch_current_size",
        "waiting": "tgi_queue_size",
    })),
    # https://docs.nvidia.com/dynamo/user-guides/observability-local/metrics. Only the frontend counts for all its
    # workers; the page of a worker also has the names of its engine.
    MetricFamily("Dynamo", "dynamo_frontend_", "model", SummedNames({
        "requests_finished": "dynamo_frontend_requests_total",
        "prompt_tokens": "dynamo_frontend_input_sequence_tokens_sum",
        "prompt_tokens_cached": "dynamo_frontend_cached_tokens_sum",
        "generation_tokens": "dynamo_frontend_output_tokens_total",
    }, {
        "running": "dynamo_frontend_inflight_requests",
        "waiting": "dynamo_frontend_queued_requests",
    })),
    # https://llm-d.ai/docs/resources/observability/metrics: the endpoint picker. The model servers behind it are vLLM
    # or SGLang and have their names. Releases before 0.9 have the second set of names; some have both.
    MetricFamily("llm-d", "llm_d_epp_request_", "model_name", SummedNames({
        "requests_finished": "llm_d_epp_request_duration_seconds_count",
        "prompt_tokens": "llm_d_epp_request_input_tokens_sum",
        "prompt_tokens_cached": "llm_d_epp_request_cached_tokens_sum",
        "generation_tokens": "llm_d_epp_request_output_tokens_sum",
    }, {
        "running": "llm_d_epp_request_running",
    })),
    MetricFamily("llm-d", "inference_objective_", "model_name", SummedNames({
        "requests_finished": "inference_objective_request_duration_seconds_count",
        "prompt_tokens": "inference_objective_input_tokens_sum",
        "prompt_tokens_cached": "inference_objective_prompt_cached_tokens_sum",
        "generation_tokens": "inference_objective_output_tokens_sum",
    }, {
        "running": "inference_objective_running_requests",
    })),
)


def family_of(scrape: Scrape) -> MetricFamily | None:
    """The family of a page; None for a page without any known name."""
    return next((family for family in FAMILIES
                 if any(sample.name.startswith(family.prefix) for sample in scrape.samples)), None)


def copied_name(scrape: Scrape) -> str | None:
    """A name by which a page shows that it is a router's copy of its workers' pages; None for any other page.

    Routers that parse and merge the pages of SGLang or vLLM replace the colon of the names.
    """
    if family_of(scrape) is not None:
        return None
    return next((sample.name for sample in scrape.samples if sample.name.startswith(("sglang_", "vllm_"))), None)


def copy_remedy(name: str) -> str:
    """What is wrong with a page of such names, and what to write."""
    return (f"has names such as {name}: it is a router's copy of its workers' pages, whose counters are not read. Name "
            'the page of each worker: endpoint(…, metrics=["http://WORKER:PORT/metrics", …]).')


def models_of(scrape: Scrape) -> frozenset[str]:
    """The models that a page names; empty if it names none."""
    family = family_of(scrape)
    if family is None or family.model_label is None:
        return frozenset()
    values = (sample.labels.get(family.model_label) for sample in scrape.samples
              if sample.name.startswith(family.prefix))
    return frozenset(value for value in values if value)


class EndpointReader(ServerReader):
    """Reads the state of a service that runs already. It never resets the caches of that service.

    Args:
        interface: the API of the service, as the test describes it.
    """

    name = "endpoint"

    def __init__(self, interface: Api) -> None:
        self.interface = interface

    def ready(self, client: httpx.Client) -> bool:  # noqa: ARG002 - other routes than OpenAI's need not exist
        return True

    def counters(self, scrape: Scrape) -> Mapping[str, float]:
        return _names_of(scrape).counters(scrape)

    def gauges(self, scrape: Scrape) -> Mapping[str, float]:
        return _names_of(scrape).gauges(scrape)

    def facts(self, scrape: Scrape) -> Mapping[str, str]:
        return _names_of(scrape).facts(scrape)

    def resolved(self, client: httpx.Client) -> Mapping[str, str]:
        """The configuration of a vLLM server; empty for any other service."""
        return VLLM.resolved(client)


def _names_of(scrape: Scrape) -> ServerReader:
    """The reader for the server family of the page. For an unknown family it reads only the start of the process."""
    family = family_of(scrape)
    return ServerReader() if family is None else family.names
