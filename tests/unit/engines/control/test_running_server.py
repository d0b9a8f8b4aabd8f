"""What a test sees of its server: read-only values."""

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from pytest_llmperf import EngineSpec, Server, vllm
from pytest_llmperf.engines.control.running_server import RunningServer, handle_of

SPEC = vllm("m")
IMMUTABLE = (str, int, float, tuple, type(None), MappingProxyType, EngineSpec)


@pytest.fixture
def server(make_server):
    return RunningServer(make_server(SPEC))


def public(server):
    return {name: getattr(server, name) for name in dir(server)}


def test_every_public_attribute_of_a_server_is_immutable(server):
    values = public(server)
    assert values.keys() == {"spec", "url", "model", "start_id", "starting_s", "pids", "facts", "counters"}
    assert [name for name, value in values.items() if name != "counters" and not isinstance(value, IMMUTABLE)] == []
    assert isinstance(server.counters(), MappingProxyType)
    assert [name for name, value in values.items() if isinstance(value, Mapping) and not isinstance(
        value, MappingProxyType)] == []


def test_no_attribute_of_a_server_can_be_set(server):
    for name in public(server):
        with pytest.raises(AttributeError):
            setattr(server, name, None)
    with pytest.raises(AttributeError):
        server.other = 1


def test_server_shows_spec_address_model_and_counters(server):
    assert server.spec == SPEC
    assert server.url.startswith("http://127.0.0.1:")
    assert server.model == server._handle.contact.served_name
    assert server.counters()["requests_finished"] == 0
    assert repr(server) == repr(server._handle)


def test_handle_of_a_server_is_the_measured_server(server):
    assert handle_of(server) is server._handle
    assert handle_of(SPEC) is SPEC
    assert Server is RunningServer
