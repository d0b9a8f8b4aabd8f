"""The commands of Nsight Systems, with a program that records them."""

import pytest

from pytest_llmperf.errors import EngineError
from pytest_llmperf.session.profile import NsightSystems, installed_nsys


@pytest.fixture
def nsys(tmp_path, monkeypatch):
    program = tmp_path / "nsys"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\necho no session; exit $(cat {tmp_path}/code)\n')
    program.chmod(0o755)
    (tmp_path / "code").write_text("0")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return installed_nsys()


def test_capture_of_installed_nsys_names_session_and_file(nsys, tmp_path):
    report = tmp_path / "test.1.nsys-rep"
    report.touch()
    nsys.start(report)
    nsys.stop(report)
    start, stop = (tmp_path / "calls").read_text().splitlines()
    assert start.startswith(f"start --session={nsys.session} --output={tmp_path}/test.1 ")
    assert stop == f"stop --session={nsys.session}"
    assert nsys.launch_words[:3] == (str(tmp_path / "nsys"), "launch", f"--session-new={nsys.session}")
    assert installed_nsys().session != nsys.session


def test_failed_nsys_command_raises_exit_code_and_output(nsys, tmp_path):
    (tmp_path / "code").write_text("3")
    with pytest.raises(EngineError, match="nsys stop ended with exit code 3: no session"):
        nsys.stop(tmp_path / "test.1.nsys-rep")
    with pytest.raises(EngineError, match=r"nsys stop failed: .*No such file"):
        NsightSystems("/none/nsys", "s").stop(tmp_path / "test.1.nsys-rep")


def test_stop_that_writes_no_report_raises_reason(nsys, tmp_path):
    """nsys ends with exit code 0 also without a report: seen with 2023.4.4 whose importer is missing."""
    report = tmp_path / "test.1.nsys-rep"
    with pytest.raises(EngineError, match=r"nsys stop wrote no test\.1\.nsys-rep: no session"):
        nsys.stop(report)
    report.with_suffix(".qdstrm").touch()
    with pytest.raises(EngineError, match=r"test\.1\.qdstrm and no report, because its importer is missing"):
        nsys.stop(report)


def test_path_without_nsys_gives_no_capture(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert installed_nsys() is None
