"""A log that keeps head and tail within its limit, and counts exactly what it leaves out."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmperf.process.serverlog import BoundedLog, printable, tail_lines


def written(path, cap_bytes, chunks):
    log = BoundedLog(path, cap_bytes)
    for chunk in chunks:
        log.write(chunk)
    log.close()
    return path.read_bytes()


def test_a_short_log_is_kept_whole(tmp_path):
    assert written(tmp_path / "log", 100, [b"one\n", b"", b"two\n"]) == b"one\ntwo\n"


@settings(max_examples=60, deadline=None)
@given(cap=st.integers(4, 200), sizes=st.lists(st.integers(0, 90), max_size=8))
def test_head_tail_and_the_count_between_add_up(cap, sizes):
    with TemporaryDirectory() as folder:
        check_sums(Path(folder), cap, sizes)


def check_sums(folder, cap, sizes):
    fed = bytes(i % 251 for i in range(sum(sizes)))
    chunks, at = [], 0
    for size in sizes:
        chunks.append(fed[at:at + size])
        at += size
    log_text = written(folder / "log", cap, chunks)
    mark = re.search(rb"\n\[\.\.\. (\d+) bytes left out \.\.\.\]\n", log_text)
    if mark is None:
        assert log_text == fed
    else:
        head, tail = log_text[:mark.start()], log_text[mark.end():]
        assert fed.startswith(head)
        assert fed.endswith(tail)
        assert len(head) + len(tail) + int(mark[1]) == len(fed)
        assert len(head) == cap // 2
    assert len(log_text) - len(mark[0] if mark else b"") <= cap
    assert [path.name for path in folder.iterdir()] == ["log"]


def test_the_tail_can_be_read_while_the_log_is_written(tmp_path):
    log = BoundedLog(tmp_path / "log", 400)
    for number in range(200):
        log.write(f"line {number}\n".encode())
        assert tail_lines(tmp_path / "log", 3)[-1] == f"line {number}"
    earlier_tail = tail_lines(tmp_path / "log", 8)
    log.close()
    assert tail_lines(tmp_path / "log", 8) == earlier_tail == [f"line {number}" for number in range(192, 200)]


def test_a_log_that_cannot_be_written_is_counted_and_does_not_raise():
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    log = BoundedLog(full, 1000)
    log.write(b"x" * 300)
    assert log.dropped_bytes == 300
    log.close()


def test_no_log_has_no_lines(tmp_path):
    assert tail_lines(tmp_path / "none", 5) == []
    (tmp_path / "empty").touch()
    assert tail_lines(tmp_path / "empty", 5) == []


def test_bytes_that_are_no_text_become_text(tmp_path):
    (tmp_path / "log").write_bytes(b"a\xffb\r\n\x1b[1;32mgreen\x1b[0m\x1b]0;title\x07 10%\r20%\rnul\x00")
    assert tail_lines(tmp_path / "log", 9) == ["a\ufffdb", "green 10%", "20%", "nul\ufffd"]


def test_controls_of_a_terminal_do_not_reach_the_tail(tmp_path):
    (tmp_path / "log").write_bytes("a\x9b31mb\x85c\x7fd\u202ee\ttab\n".encode())
    assert tail_lines(tmp_path / "log", 9) == ["a\ufffd31mb\ufffdc\ufffdd\ufffde\ttab"]


def test_only_the_last_lines_of_a_long_log_are_read(tmp_path):
    (tmp_path / "log").write_bytes(b"first\n" + b"y" * (3 << 20) + b"\nlast\n")
    assert tail_lines(tmp_path / "log", 1) == ["last"]
    assert len(tail_lines(tmp_path / "log", 2)[0]) < 2100


def test_long_line_is_cut_in_middle():
    line = printable("a" * 3000 + "z" * 3000, limit_chars=100)
    assert line.startswith("a" * 50)
    assert line.endswith("z" * 50)
    assert "5900 characters" in line
