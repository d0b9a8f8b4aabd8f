"""`endpoint(URL)`: where the requests, the models and the metrics page of a service are."""

import pytest

from pytest_llmperf.engines.control.service_url import service_url
from pytest_llmperf.engines.endpoint.spec import endpoint

AZURE = "/openai/deployments/d"
VERSION = "?api-version=2024-10-21"


@pytest.mark.parametrize(
    ("tail", "requests", "metrics"),
    [
        *((tail, "/v1/chat/completions", "/metrics") for tail in ("", "/", "/v1", "/v1/", "/v1/chat/completions")),
        *((f"/api{tail}", "/api/v1/chat/completions", "/api/metrics") for tail in ("", "/v1", "/v1/chat/completions/")),
        ("/v3", "/v3/chat/completions", "/metrics"),
        ("/v1beta/openai/", "/v1beta/openai/chat/completions", "/metrics"),
        ("/api/paas/v4", "/api/paas/v4/chat/completions", "/api/paas/metrics"),
        ("/llama-v3", "/llama-v3/v1/chat/completions", "/llama-v3/metrics"),
        ("/chat/completions", "/chat/completions", "/metrics"),
        (f"{AZURE}{VERSION}", f"{AZURE}/chat/completions{VERSION}", f"{AZURE}/metrics"),
        (f"{AZURE}/chat/completions{VERSION}", f"{AZURE}/chat/completions{VERSION}", f"{AZURE}/metrics"),
        (AZURE, f"{AZURE}/chat/completions", f"{AZURE}/metrics"),
        ("/a b\r\nX: y", "/a%20bX:%20y/v1/chat/completions", "/a%20bX:%20y/metrics"),
    ],
)
def test_url_in_any_usual_form_leads_to_requests_and_metrics(tail, requests, metrics):
    service = service_url(endpoint(f"http://h:8000{tail}", model="m", protocol="chat").url)
    assert service.url("/v1/chat/completions") == f"http://h:8000{requests}"
    assert service.url("/v1/models") == f"http://h:8000{requests.replace('chat/completions', 'models')}"
    assert service.url("/metrics") == f"http://h:8000{metrics}"


def test_spellings_of_one_url_give_equal_specs():
    urls = ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/", "http://h:1/v1/completions"]
    assert {endpoint(url, model="m") for url in urls} == {endpoint("http://h:1", model="m")}
