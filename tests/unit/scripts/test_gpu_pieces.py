"""Pieces of the suites side by side: which GPUs they get, and what the end of the time does to them."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "gpu_pieces.py"
TESTS = '''
import json, os, time
from pathlib import Path

def note(name, **more):
    Path(name + ".json").write_text(json.dumps({
        "gpus": os.environ["CUDA_VISIBLE_DEVICES"], "tmp": os.environ["TMPDIR"],
        "cores": sorted(os.sched_getaffinity(0)), **more}))

def test_four(): note("four")
def test_pair(): time.sleep(1); note("pair")
def test_single(): time.sleep(1); note("single")
def test_wrong(): assert False
def test_endless():
    try:
        note("begun")
        time.sleep(60)
    except KeyboardInterrupt:
        note("endless", interrupted=True)
        raise
'''


@pytest.fixture(scope="module")
def pieces(load_script):
    return load_script("gpu_pieces")


@pytest.fixture
def go(pieces, tmp_path, monkeypatch):
    """Run them over the tests above; the exit code, and what a test noted."""
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider -p no:pytest_llmperf.plugin\n")
    monkeypatch.chdir(tmp_path)

    def run(*given: str, gpus: str = "0,1,2,3", seconds: float = 60) -> int:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
        named = [word for piece in given for word in ("--piece", piece)]
        return pieces.main([f"--seconds={seconds}", "--out=out", *named, "--", "test_it.py"])

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


def noted(name: str) -> dict[str, object]:
    return json.loads(Path(f"{name}.json").read_text())


@pytest.mark.parametrize("text", ["two_gpus", "0:10:x", "1:x:y", "1:10:", "1:10", "-1:10:x"])
def test_a_piece_that_cannot_be_read_is_refused(pieces, text):
    with pytest.raises(argparse.ArgumentTypeError, match="GPUS:SECONDS:EXPRESSION"):
        pieces.piece(text)


def test_an_expression_may_hold_colons_and_blanks(pieces):
    assert pieces.piece("2:390: scales and 2- ") == pieces.Piece(2, 390.0, "scales and 2-")


def test_adjacent_free_gpus_are_chosen(pieces):
    assert pieces.neighbours({0, 2, 3, 5}, 2) == (2, 3)
    assert pieces.neighbours({0, 2, 3, 5}, 1) == (0,)
    assert pieces.neighbours({0, 2, 3, 5}, 3) is None


def test_cores_are_divided_among_gpus(pieces):
    assert pieces.cores_of((1,), 4, range(8)) == {2, 3}
    assert pieces.cores_of((2, 3), 4, range(8)) == {4, 5, 6, 7}
    assert pieces.cores_of((2,), 4, (0, 1)) == {0, 1}


def test_pieces_use_separate_gpus_concurrently(go, capsys):
    assert go("2:1:pair", "1:1:single", "4:1:four") == 0
    assert noted("pair")["gpus"] == "0,1"
    assert noted("single")["gpus"] == "2"
    assert noted("four")["gpus"] == "0,1,2,3"
    assert noted("pair")["tmp"] != noted("single")["tmp"]
    output = capsys.readouterr().out
    assert output.index("single: exit code 0") < output.index("four: begun on GPU 0, 1, 2, 3")
    assert Path("out/03-four.xml").exists()


def test_end_of_time_interrupts_running_piece_and_skips_next_piece(go, capsys):
    assert go("1:1:endless", "1:100:single", seconds=12) == 1
    assert noted("endless")["interrupted"] is True
    output = capsys.readouterr().out
    assert "endless: exit code 2" in output
    assert re.search(r"single: not begun, 1?\d s are left of the 100 that it needs", output)
    assert not Path("single.json").exists()


@pytest.mark.parametrize(("needs_s", "code"), [(60, 0), (61, 1)])
def test_piece_that_needs_whole_time_begins_and_longer_piece_does_not(go, needs_s, code):
    assert go(f"1:{needs_s}:single", seconds=60) == code
    assert Path("single.json").exists() is (code == 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_cancelled_job_leaves_no_running_process(go, number):
    command = [sys.executable, str(SCRIPT), "--seconds=60", "--out=out", "--piece=1:1:endless", "--", "test_it.py"]
    script = subprocess.Popen(command, env=os.environ | {"CUDA_VISIBLE_DEVICES": "0"})
    try:
        while not Path("begun.json").exists():
            assert script.poll() is None
            time.sleep(0.05)
        script.send_signal(number)
        assert script.wait(60) == 130
    finally:
        script.kill()
    assert noted("endless")["interrupted"] is True


@pytest.mark.thorough
def test_failing_piece_does_not_stop_other_pieces(go):
    assert go("1:1:wrong", "1:1:single") == 1
    assert Path("single.json").exists()


def test_too_many_requested_gpus_are_refused(go, capsys):
    with pytest.raises(SystemExit):
        go("8:1:four")
    assert "there are 4 GPUs here, too few for four" in capsys.readouterr().err


def test_piece_has_gpus_of_caller_and_separate_cores(go):
    cores = sorted(os.sched_getaffinity(0))
    names = [str(7 + number) for number in range(len(cores))]
    assert go("1:1:four", "1:1:pair", gpus=",".join(names)) == 0
    assert (noted("four")["gpus"], noted("four")["cores"]) == ("7", cores[:1])
    if len(cores) > 1:
        assert (noted("pair")["gpus"], noted("pair")["cores"]) == ("8", cores[1:2])
