"""The reader of untrusted files; escapes and lengths of echoed values; CSV cells."""

import gzip
import os

import pytest

from pytest_llmperf.bounded_file import read_file, read_packed
from pytest_llmperf.errors import UsageError, echo
from pytest_llmperf.process.scratch import write_whole
from pytest_llmperf.report.table import cell_text


@pytest.mark.parametrize(("make", "problem"), [
    (os.mkfifo, "it is a FIFO and no regular file"),
    (lambda path: path.mkdir(), "it is a folder and no regular file"),
    (lambda path: path.symlink_to("/dev/zero"), "it leads out of the folder "),
    (lambda path: path.symlink_to("/etc/hostname"), "it leads out of the folder "),
    (lambda path: path.write_bytes(b"x" * 2**21), "it has more than 1 MiB"),
])
def test_special_file_in_run_folder_is_refused_with_reason(tmp_path, make, problem):
    make(tmp_path / "x.json")
    with pytest.raises(OSError, match=problem):
        read_file(tmp_path / "x.json", tmp_path, limit_bytes=2**20)


def test_link_inside_run_folder_is_read(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").symlink_to("a")
    assert read_file(tmp_path / "b", tmp_path) == b"1"


def test_packed_file_expanding_beyond_limit_is_refused(tmp_path):
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"[" + b"0," * 2**22 + b"0]"))
    with pytest.raises(OSError, match=r"would take more than 6[45] MiB of memory"):
        read_packed(tmp_path / "x.gz", tmp_path)


def test_device_is_not_replaced_by_written_file(tmp_path):
    (tmp_path / "null").symlink_to("/dev/null")
    with pytest.raises(OSError, match="is never replaced"):
        write_whole(tmp_path / "null", b"x")
    assert (tmp_path / "null").is_symlink()


def test_message_shows_control_characters_as_escapes():
    assert str(UsageError("a\x1b[31m\u202eb\x00\ud800\n")) == r"a\x1b[31m\u202eb\x00\ud800" + "\n"


def test_echo_has_at_most_200_characters_on_one_line():
    assert len(echo("x" * 9999)) == 200
    assert echo("a\n") == r"'a\n'"
    assert echo(10**5000) == "a value of type int"


@pytest.mark.parametrize(("text", "cell"), [
    ("=1+1", "'=1+1"), ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"), ("-2+3", "'-2+3"), ("@SUM(A1)", "'@SUM(A1)"),
    ("\t=1", "'\t=1"), ("\r=1", "'\r=1"), (" =1", "' =1"), ("-1.5", "-1.5"), ("+5.0 %", "+5.0 %"), ("-3 ms", "-3 ms"),
    ("a=1", "a=1"), ("", ""),
])
def test_csv_cell_that_a_spreadsheet_would_evaluate_is_quoted(text, cell):
    assert cell_text(text) == cell
