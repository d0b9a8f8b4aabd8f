"""A server of the `engine` fixture, held until FOLDER/finish appears; given to pytest by path, never by name."""

import os
import time
from pathlib import Path

import pytest

from pytest_llmperf import vllm

FOLDER = Path(os.environ["KILL_MATRIX_FOLDER"])


@pytest.mark.engine(vllm("tiny", env={"STUB_FAMILY": str(FOLDER)}))
def test_server_is_held_until_finish_file_exists(engine):
    (FOLDER / "holder").write_text(str(os.getpid()))
    while not (FOLDER / "pids" / "detached").exists():
        time.sleep(0.005)
    (FOLDER / "ready").touch()
    for _ in range(1200):
        if (FOLDER / "finish").exists():
            return
        time.sleep(0.05)
