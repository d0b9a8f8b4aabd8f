"""A service on the command line: its metrics pages and its hardware kind."""

import argparse

import pytest

from pytest_llmperf.cli.target import add_arguments, spec_of
from pytest_llmperf.errors import SpecError


def parsed(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser, "engine")
    return spec_of(parser.parse_args(["http://h:1:m", *words]))


def test_service_on_the_command_line_is_an_endpoint():
    spec = parsed("--metrics", "http://a:1", "--metrics", "http://b:1", "--kind", "h200")
    assert (spec.metrics, spec.kind) == (("http://a:1", "http://b:1"), "h200")
    assert (parsed().metrics, parsed().kind) == (None, None)


def test_unknown_kind_on_the_command_line_is_refused():
    with pytest.raises(SpecError, match=r"kind='h20'\): there is no such hardware kind. Did you mean 'h200'"):
        parsed("--kind", "h20")
