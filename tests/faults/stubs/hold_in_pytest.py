"""The same held server inside a real pytest run; given to pytest by path, never collected by name."""

import os
from pathlib import Path

from hold_server import hold


def test_hold():
    hold(Path(os.environ["KILL_MATRIX_FOLDER"]), int(os.environ["KILL_MATRIX_PORT"]), grace_s=0.5)
