"""Servers of engines that other packages add: their names, packages, prompts, and proof of identity."""

import os
import socket
from types import SimpleNamespace

import pytest

from pytest_llmperf.cli.target import spec_of
from pytest_llmperf.engines.adapters import ENGINES, package_of
from pytest_llmperf.engines.control.contact import Contact
from pytest_llmperf.engines.control.identity import check_identity
from pytest_llmperf.engines.process.environment import Installations
from pytest_llmperf.engines.process.unit import Unit
from pytest_llmperf.engines.server import Server
from pytest_llmperf.errors import EngineError, EnvironmentMissing, SpecError, WrongServer
from pytest_llmperf.extending import Api, EngineAdapter, Request, build_spec


class Added(EngineAdapter):
    api, name, package, lists_models = 1, "own_serve", "pip", False
    interface = Api(text=True, done=False)

    def arguments(self, spec, placement):
        return []


@pytest.fixture(autouse=True)
def _added():
    with ENGINES.added([Added()], "conftest.py"):
        yield


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def server_at(url, pid):
    process = SimpleNamespace(pids=lambda: (pid,), ending=lambda: None)
    unit = Unit(build_spec("own_serve", "tiny", {}, {}), process)
    return Server(Added(), Contact(url, "tiny@main"), unit, start_id=1)


def test_server_without_model_list_must_own_the_listening_socket(listening):
    check_identity(server_at(listening, os.getpid()))
    with pytest.raises(WrongServer, match=rf"\(pid {os.getpid()}, uid \d+\) listens on {listening}, and is no process"):
        check_identity(server_at(listening, 1))


def test_server_without_model_list_is_not_ready_before_listening():
    with pytest.raises(EngineError, match="no process listens on") as raised:
        check_identity(server_at("http://127.0.0.1:1", os.getpid()))
    assert not isinstance(raised.value, WrongServer)


def test_started_server_with_text_interface_gets_text_prompts():
    server = server_at("http://127.0.0.1:1", os.getpid())
    (request,) = server.as_sent([Request(0, (1000, 1001), 4, 2)])
    assert isinstance(request.prompt, str)
    assert b'"prompt":"' in server.post(request)[1]


def test_package_of_an_engine_decides_environment_and_install_command(tmp_path):
    assert package_of("own_serve") == "pip"
    assert package_of("vllm") == "vllm"
    assert package_of("lm_eval") == "lm_eval"
    assert Installations({}, tmp_path, "cpu").find_environment("own_serve", "pip").origin == "this interpreter"
    with pytest.raises(EnvironmentMissing, match="bin/pip install no_such_package"):
        Installations({}, tmp_path, "cpu").find_environment("own_serve", "no_such_package")


@pytest.mark.parametrize("text", ["own_server:tiny", "ownserve:tiny"])
def test_mistyped_engine_of_command_line_gets_nearest_name(text):
    with pytest.raises(SpecError, match=r"own_serve:MODEL or .*Did you mean own_serve:tiny"):
        spec_of(SimpleNamespace(engine=text, flag=[], model_alias=[]))
