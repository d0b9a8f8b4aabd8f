"""A watchdog reports that the measuring process ended before the process printed its verdicts.

`os._exit(0)` in a test ends pytest at once with exit code 0, and nothing within that process can object.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import astuple
from pathlib import Path

from . import kernel, leftovers, watchdog
from .unit import ProcessUnit

END_WAIT_S = 10.0


class SessionWatchdog:
    """A watchdog process that reports a pytest process which dies before its verdicts.

    The watchdog runs from the first measurement of the pytest process until `end`.

    Args:
        run_dir: folder in which the watchdog writes `ended_without_verdict.txt`.
        who: name of the pytest process in that file and on standard error.
    """

    def __init__(self, run_dir: Path, who: str) -> None:
        show = f"llmperf show {shlex.quote(str(run_dir))}"
        words = (f"llmperf: {who} ended without verdict, so the exit code says nothing about the tests. To see the "
                 f"stored runs: {show}")
        tag = leftovers.new_tag(os.urandom(6).hex())
        unit = ProcessUnit(str(tag), str(run_dir), astuple(tag.parent), abandoned_grace_s=0.0, last_words=words)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", watchdog.__file__], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        kernel.write_line(self._process, unit.to_json())

    def end(self) -> None:
        """Ends the watchdog once the verdicts are reported. May be called again."""
        kernel.write_line(self._process, '{"grace_s": 0}')
        kernel.close_pipes(self._process)
        kernel.end_child(self._process, END_WAIT_S)
