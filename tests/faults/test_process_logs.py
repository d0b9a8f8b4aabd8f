"""Faults 64-66, 76, 77: a server may log arbitrary content of arbitrary length."""

import os
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from pytest_llmperf.process.launch import Launch
from pytest_llmperf.process.supervisor import Supervised

if sys.platform != "linux":
    pytest.skip("supervision is Linux only", allow_module_level=True)

STUB = Path(__file__).with_name("stubs") / "stub_server.py"


def run(folder, *options, env=None, **fields):
    argv = (sys.executable, "-I", "-S", str(STUB), str(folder), "--exit-code", "0", *options)
    server = Supervised.start(Launch(argv, {**os.environ, **(env or {})}, folder, folder / "run", **fields))
    assert server.wait_exit(30.0) == "exit code 0"
    return server


def test_huge_log_is_limited_to_head_and_tail(tmp_path):
    """Fault 64."""
    burst = 16 << 20  # masking takes 90 ms of CPU a MiB, and the machine may be busy
    server = run(tmp_path, "--say", r"first line\n", "--burst-bytes", str(burst), log_cap_bytes=1 << 20)
    server.stop()
    data = server.launch.log_path.read_bytes()
    assert len(data) < (1 << 20) + 100
    assert data.startswith(b"first line\n")
    head, _, rest = data.partition(b"\n[... ")
    left_out, _, tail = rest.partition(b" bytes left out ...]\n")
    assert len(head) + int(left_out) + len(tail) == burst + len("first line\n")
    assert [path.name for path in tmp_path.glob("run/server.log*")] == ["server.log"]


def test_a_server_that_writes_without_line_ends_is_not_blocked(tmp_path):
    """Fault 66."""
    server = run(tmp_path, "--burst-bytes", str(8 << 20))
    assert server.evidence().ending == "exit code 0"  # a blocked server would never end
    server.stop()


def test_a_log_of_any_bytes_is_valid_xml_text(tmp_path):
    """Fault 65."""
    server = run(tmp_path, "--say", r"\x1b[31mred\x1b[0m \x00\x01\x0b \xff\xfe caf\xc3\xa9 \xef\xbf\xbf <&>\n")
    (line,) = server.evidence().log_tail
    server.stop()
    element = ElementTree.Element("system-err")
    element.text = line
    assert ElementTree.fromstring(ElementTree.tostring(element)).text == line
    assert line.startswith("red ")
    assert "café" in line


def test_log_is_complete_when_server_exit_is_known(tmp_path):
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        server = run(folder, "--burst-bytes", "4000000")
        assert server.launch.log_path.stat().st_size == 4000000
        server.stop()


def test_secrets_do_not_reach_the_log_the_evidence_or_a_repr(tmp_path):
    """Faults 76 and 77."""
    canary = "canary-1f0e9d8c7b6a"
    server = run(tmp_path, "--say", f"token {canary} end\\n", "--burst-bytes", "0", env={"HF_TOKEN": canary})
    server.stop()
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").iterdir())
    assert canary.encode() not in written
    assert canary not in str(server.evidence()) + repr(server) + repr(server.launch)
    assert server.evidence().log_tail == ("token *** end",)
