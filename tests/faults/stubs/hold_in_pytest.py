"""The same held server inside a real pytest run; given to pytest by path, never collected by name."""

import os
from pathlib import Path

import pytest
from hold_server import held, wait_for

FOLDER = Path(os.environ["KILL_MATRIX_FOLDER"])


@pytest.fixture
def server():
    with held(FOLDER, int(os.environ["KILL_MATRIX_PORT"]), grace_s=0.5):
        yield


@pytest.mark.usefixtures("server")
def test_server_in_pytest_is_held_until_finish_file_exists():
    wait_for(FOLDER / "finish")
