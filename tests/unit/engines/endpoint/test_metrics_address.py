"""`endpoint(…, metrics=…)`: which texts are addresses, and what each means."""

import pytest

from pytest_llmperf.engines.endpoint.metrics_address import HeadlessService, Page, PrometheusQuery, address_of
from pytest_llmperf.engines.endpoint.spec import endpoint
from pytest_llmperf.errors import SpecError


def service(metrics, **more):
    return endpoint("http://h:1", model="m", metrics=metrics, **more)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://10.0.0.5:8000/metrics", Page("http://10.0.0.5:8000", "/metrics")),
        ("https://h/v/metrics", Page("https://h", "/v/metrics")),
        ("http://h:9/api/metrics?format=text", Page("http://h:9", "/api/metrics?format=text")),
        ("http://h:9", Page("http://h:9", "/metrics")),
        ("dns://vllm.default.svc:8000", HeadlessService("http", "vllm.default.svc", 8000, "/metrics")),
        ("dns+https://vllm/m", HeadlessService("https", "vllm", 443, "/m")),
        ('prometheus+http://p:9090?match={job="vllm",pod=~"a.+"}',
         PrometheusQuery("http://p:9090", 'job="vllm",pod=~"a.+"')),
        ("prometheus+https://p/select/0/?match=%7Bjob%3D%22vllm%22,%7D",
         PrometheusQuery("https://p/select/0", 'job="vllm"')),
    ],
)
def test_text_of_each_form_gives_an_address(text, address):
    assert service(text).metrics == (text,)
    assert address_of(text) == address


def test_specs_with_own_page_two_pages_or_none_differ():
    assert service(None).metrics is None
    assert service([]).metrics == ()
    assert service(["http://a:1", "http://b:1"]).metrics == ("http://a:1", "http://b:1")


def test_replica_is_named_by_host_and_port_and_an_unusual_path():
    assert Page("http://a:1", "/metrics").name == "a:1"
    assert Page("http://a:1", "/m").name == "a:1/m"
    assert HeadlessService("http", "vllm", 8000, "/metrics").page("fd00::1").name == "[fd00::1]:8000"


@pytest.mark.parametrize(
    ("metrics", "problem"),
    [
        (5, "an address must be a text or a list of texts"),
        ([5], "an address must be a text or a list of texts"),
        ("10.0.0.5:8000", "no address of a metrics page"),
        ("ftp://a:1", "no address of a metrics page"),
        ("http://a:0", "no address of a metrics page"),
        ("http://a:99999", "Port out of range"),
        ("http://a:1/metrics#x", "a fragment has no meaning here"),
        ("http://a:1/metrics?api_key=hunter22", r"holds a secret \(api_key\)"),
        ("prometheus+http://p:9090", "the label matchers are missing"),
        ("prometheus+http://p:9090?match={}", "the label matchers are missing"),
        ("prometheus+http://p:9090?match=vllm", "the label matchers are missing"),
        (["http://a:1", "http://a:1"], "given twice"),
    ],
)
def test_other_texts_are_refused_with_a_remedy(metrics, problem):
    with pytest.raises(SpecError, match=problem):
        service(metrics)


def test_credentials_in_an_address_are_refused_and_not_shown():
    with pytest.raises(SpecError, match=r"credentials.*metrics_headers_env") as caught:
        service("prometheus+http://me:secret@p:9090?match={a=\"b\"}")
    assert "secret" not in str(caught.value)


def test_header_for_no_address_is_refused():
    with pytest.raises(SpecError, match="the headers need an address"):
        service(None, metrics_headers_env={"Authorization": "PROMETHEUS_TOKEN"})


def test_spec_as_text_names_addresses_and_variables():
    spec = service(["http://a:1"], metrics_headers_env={"Authorization": "PROMETHEUS_TOKEN"})
    assert "metrics=['http://a:1'], metrics_header.Authorization=env:PROMETHEUS_TOKEN" in str(spec)


@pytest.mark.parametrize("header", ["X Pod", "X-Pod:", 3])
def test_replica_header_that_is_no_name_of_a_header_is_refused(header):
    with pytest.raises(SpecError, match=r"replica_header=.*write the name of a header"):
        endpoint("http://127.0.0.1:8000", model="m", replica_header=header)


def test_replica_header_is_in_the_text_of_the_spec_but_no_condition():
    spec = endpoint("http://127.0.0.1:8000", model="m", replica_header="X-Pod")
    assert "replica_header='x-pod'" in repr(spec)
    assert "replica_header" not in spec.api.stated
