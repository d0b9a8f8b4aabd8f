"""A service on the command line: its metrics pages and its hardware kind."""

import argparse

import pytest

from pytest_llmperf.cli.parser import add_table
from pytest_llmperf.cli.target import arguments, spec_of
from pytest_llmperf.engines.endpoint.spec import endpoint
from pytest_llmperf.errors import SpecError


def parsed(*words, server="http://h:1:m"):
    parser = argparse.ArgumentParser()
    add_table(parser, arguments("engine"))
    return spec_of(parser.parse_args([server, *words]))


def test_service_on_the_command_line_is_an_endpoint():
    spec = parsed("--metrics", "http://a:1", "--metrics", "http://b:1", "--kind", "h200")
    assert (spec.metrics, spec.kind) == (("http://a:1", "http://b:1"), "h200")
    assert (parsed().metrics, parsed().kind) == (None, None)


def test_unknown_kind_on_the_command_line_is_refused():
    with pytest.raises(SpecError, match=r"kind='h20'\): there is no such hardware kind. Did you mean 'h200'"):
        parsed("--kind", "h20")


@pytest.mark.parametrize(("server", "url", "model"), [
    ("http://h:8000:llama3:8b", "http://h:8000", "llama3:8b"), ("http://h/v1:m", "http://h", "m"),
    ("http://[::1]:8000/v3:m", "http://[::1]:8000/v3", "m"), ("http://h:1:@cf/meta/m", "http://h:1", "@cf/meta/m"),
    ("https://h/openai/deployments/d?api-version=2024-10-21:m", "https://h/openai/deployments/d?api-version=2024-10-21",
     "m"),
])
def test_command_line_with_url_and_model_gives_the_endpoint(server, url, model):
    assert parsed(server=server) == endpoint(url, model=model)


@pytest.mark.parametrize("server", ["http://h:8000", "http://h:8000/v1", "http://h"])
def test_url_without_a_model_is_refused(server):
    with pytest.raises(SpecError, match="HOST:PORT:MODEL"):
        parsed(server=server)
