"""Tags: a tag names the process that started a server, and can be parsed again."""

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.process.leftovers import Leftover, Sweep, Tag, new_tag
from pytest_llmperf.process.tree import Identity, is_alive


@given(
    uid=st.integers(0, 2**32), pid=st.integers(1, 2**22), starttime=st.integers(0, 2**60), nonce=st.text(max_size=20)
)
def test_a_tag_can_be_read_back(uid, pid, starttime, nonce):
    tag = Tag(uid, Identity(pid, starttime), nonce)
    assert Tag.parse(str(tag)) == tag


@pytest.mark.parametrize("text", ["", "1-2-3", "a-1-2-n", "1-b-2-n", "1-2-²-n", "-1-2-n"])
def test_malformed_tag_is_refused(text):
    assert Tag.parse(text) is None


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux only")
def test_new_tag_names_current_process_as_parent():
    tag = new_tag("nonce")
    assert tag.parent.pid == os.getpid()
    assert is_alive(tag.parent)
    assert str(tag) != str(new_tag("other"))


def test_sweep_text_names_killed_and_surviving_leftovers():
    left = Leftover(Identity(12, 1), "VLLM::EngineCore", Tag.parse("0-7-1-n"))
    assert not Sweep()
    assert str(Sweep()) == "no leftovers"
    text = "VLLM::EngineCore (pid 12, of the run with pid 7)"
    assert str(Sweep(killed=(left,))) == f"killed leftovers of an earlier run: {text}"
    assert text in str(Sweep(survivors=(left,)))
    assert Sweep(pending=(left,))
