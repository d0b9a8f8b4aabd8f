"""Faults 76 to 79: secrets and private texts are in nothing that a run leaves behind."""

import base64
import gzip
import json
import os
import random
import re
import socket
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from pytest_llmperf import endpoint
from pytest_llmperf.clock import SystemClock
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.process.launch import Launcher
from pytest_llmperf.masking import spellings
from pytest_llmperf.testing.scripted_server import ScriptedServer
from pytest_llmperf.testing.streams import plain
from pytest_llmperf.testing.waiting import until

ENGINE = Path(__file__).parents[1] / "stubs" / "engine.py"

TOKEN, KEY, PASSWORD = "canary/token+1f0e9d8c", "sk-canary-key-7b6a5948", "canary-password-3c2b1a"
SUITE = """
SPEC = vllm("tiny", api_key=os.environ["CANARY_1"], env={
    "HF_TOKEN": os.environ["CANARY_0"], "STUB_MODE": @@, "STUB_AFTER": "17", "STUB_TELL": "told-you",
})

def test_x(perf):
    run = perf.measure(SPEC, FEW)
    perf.check(run, "error_rate == 0")
    perf.compare_with_baseline(run)
    assert @@ != "asserts", repr(perf) + repr(SPEC)
"""
USERINFO = """
from pytest_llmperf import endpoint

def test_x(perf):
    spec = endpoint(f"http://somebody:{os.environ['CANARY_2']}@127.0.0.1:9", model="m")
    perf.check(perf.measure(spec, FEW), "error_rate == 0")
"""
SERVICE = """
from pytest_llmperf import endpoint

SPEC = endpoint("http://127.0.0.1:@PORT@", model="m", api_key_env="CANARY_1", headers_env={"X-Team": "CANARY_2"},
                @OPTIONS@)

def test_x(perf):
    run = perf.measure(SPEC, FEW)
    perf.check(run, "error_rate == 0")
    assert False, repr(perf) + repr(SPEC) + str(run.runs[0].records[0].detail)
"""


@pytest.fixture
def canaries(monkeypatch):
    for number, value in enumerate((TOKEN, KEY, PASSWORD)):
        monkeypatch.setenv(f"CANARY_{number}", value)


def left_behind(suite, measured=True):
    """Every file that the run wrote, by its path."""
    suite_files = {"test_it.py", "stubbed.py"}
    paths = [path for path in suite.folder.rglob("*") if path.is_file() and path.name not in suite_files]
    artefacts = [path for path in paths if "__pycache__" not in path.parts]
    return {str(path.relative_to(suite.folder)): readable(path, measured) for path in artefacts}


def readable(path, measured):
    """A file's bytes with whatever is packed in them: requests are gzipped, a report's pages in base64, too."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    packed = re.findall(rb'data-packed="([^"]+)"', data)
    assert packed or not measured or path.name != "report.html"
    return b"\n".join([data, *(gzip.decompress(base64.b64decode(text)) for text in packed)])


def secrets_in(data):
    secrets = [text for value in (TOKEN, KEY, PASSWORD) for text in spellings(value) if text.encode() in data]
    return secrets + re.findall(rb"(?i)shaped-?canary-?\d", data)


@pytest.mark.parametrize(("mode", "code"), [("", 0), ("dies", 10), ("asserts", 1)])
def test_secrets_of_an_engine_stay_inside(suite, canaries, mode, code):
    """Fault 76: secrets in the engine's environment, command line and log, in any spelling."""
    result, _ = suite.run(SUITE.replace("@@", repr(mode)), "--update-baselines-new", "-rA")
    assert result.ret == code
    files = left_behind(suite)
    assert any(b"told-you" in data for data in files.values())  # it did log them
    logs = [path for path, data in files.items() if b"--max-num-batched-token cannot be emulated." in data]
    assert [path for path in logs if path.endswith("server.log")]
    assert any("runs/" in path for path in files)
    assert any(path.startswith("baselines/") and path.endswith(".json") for path in files) == (mode == "")
    assert {path: secrets for path, data in files.items() if (secrets := secrets_in(data))} == {}
    assert not secrets_in(result.stdout.str().encode() + result.stderr.str().encode())


def test_a_password_in_an_address_stays_inside(suite, canaries):
    result, _ = suite.run(USERINFO)
    assert result.ret != 0
    leaks = {path: leaks for path, data in left_behind(suite, measured=False).items() if (leaks := secrets_in(data))}
    assert leaks == {}
    assert not secrets_in(result.stdout.str().encode())


def answers(port):
    with closing(socket.socket()) as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def service(mode):
    """The stub as a service that wants the key; gives its port."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, str(ENGINE), "serve", "m", "--port", str(port), "--served-model-name", "m"]
    environment = os.environ | {"STUB_MODE": mode, "STUB_KEY": KEY, "STUB_AFTER": "0"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: answers(port))
            yield port
        finally:
            process.kill()


def service_suite(port, options=""):
    return SERVICE.replace("@PORT@", str(port)).replace("@OPTIONS@", options)


@pytest.mark.parametrize(("mode", "options"), [
    ("", ""), ("repeats-the-key", ""), ("repeats-the-key", 'protocol="chat", stream=False'),
    ("", 'protocol="responses"'),
])
def test_api_key_of_an_endpoint_is_sent_and_is_in_no_artefact(suite, canaries, mode, options):
    """Fault 76: the key and the header are in memory only, even where the service repeats them in an answer."""
    with service(mode) as port:
        result, _ = suite.run(service_suite(port, options), "-rA", "--showlocals")
    shown = result.stdout.str()
    files = left_behind(suite, measured=not mode)
    assert ("Incorrect API key: ***" if mode else "header.Authorization=key-env:CANARY_1") in shown
    assert any("runs/" in path for path in files)
    assert {path: secrets for path, data in files.items() if (secrets := secrets_in(data))} == {}
    assert not secrets_in(shown.encode() + result.stderr.str().encode())


def test_chat_endpoint_with_a_key_is_measured_over_a_socket(suite, canaries):
    with service("") as port:
        call = service_suite(port, 'protocol="chat"')
        result, _ = suite.run(call.replace("    assert False, ", "    assert run.runs[0].records[0].ok, "), "-rA")
    result.assert_outcomes(passed=1)


def test_key_of_a_service_is_sent_to_no_page_of_another_host(canaries, tmp_path):
    """Fault 76: pages of replicas get their own header, and the page on the service's own port gets its key, too."""

    def answer(_number, received):
        path = received.head.split(b" ")[1].decode()
        if path == "/v1/models":
            return plain(200, b'{"data": [{"id": "m"}]}')
        usage = b'{"usage": {"completion_tokens": 1}}'
        return plain(200, usage if path == "/v1/completions" else b"vllm:request_success_total 1\n")

    with ScriptedServer(answer=answer) as here, ScriptedServer(answer=answer) as elsewhere:
        pages = [f"http://127.0.0.1:{server.port}/metrics" for server in (here, elsewhere)]
        spec = endpoint(f"http://127.0.0.1:{here.port}", model="m", api_key_env="CANARY_1", metrics=pages,
                        metrics_headers_env={"X-Page": "CANARY_2"})
        launcher = Launcher(Settings(), tmp_path, tmp_path, "cpu", SystemClock(), random.Random())
        launcher.start(spec, 1).stop(0)
    scrapes = [request.head for request in elsewhere.requests]
    assert scrapes
    assert all(PASSWORD.encode() in head and KEY.encode() not in head for head in scrapes)
    assert all(KEY.encode() in request.head for request in here.requests)


def test_endpoint_without_key_names_the_argument_to_write(suite, canaries):
    with service("") as port:
        call = service_suite(port).replace('api_key_env="CANARY_1", headers_env={"X-Team": "CANARY_2"},', "")
        result, _ = suite.run(call, "-rA")
    assert 'answered 401. The request had no API key. Write endpoint(…, api_key_env="VARIABLE")' in result.stdout.str()


def test_the_environment_is_not_written_down(suite, monkeypatch):
    """Fault 79: no variable of the user's own stands anywhere, secret or not."""
    monkeypatch.setenv("SOME_PRIVATE_PLACE", "nobodys-business-4711")
    result, _ = suite.run(SUITE.replace("@@", "''").replace('os.environ["CANARY_1"]', '"k"').replace(
        'os.environ["CANARY_0"]', '"t"'))
    result.assert_outcomes(skipped=1)  # there is no baseline
    assert not [path for path, data in left_behind(suite).items() if b"nobodys-business-4711" in data]


def test_prompts_and_answers_are_not_kept(suite):
    """Fault 78: a conversation goes in as text; numbers and a digest of it come out."""
    talk = [{"from": "human", "value": "my private question " * 8}, {"from": "gpt", "value": "a private answer " * 8}]
    (suite.folder / "talks.json").write_text(json.dumps([{"id": str(i), "conversations": talk} for i in range(20)]))
    suite.run("""
from pytest_llmperf import sharegpt

def test_x(perf):
    run = perf.measure(stub(), sharegpt(path="talks.json", arrivals=closed(2), requests=12))
    perf.check(run, "error_rate == 0")
""")
    files = {path: data for path, data in left_behind(suite).items() if path != "talks.json"}
    assert any("runs/" in path and path.endswith(".json") and b"sharegpt" in data for path, data in files.items())
    assert not [path for path, data in files.items() if b"private question" in data or b"private answer" in data]
