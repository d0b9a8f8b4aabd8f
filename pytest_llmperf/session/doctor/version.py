"""Which version of an engine an environment has, without importing the engine: that would take half a minute."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from pytest_llmperf.engines.environment import Environment

TIMEOUT_S = 30.0
ASK = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"


def version_in(environment: Environment, engine: str) -> str | None:
    """From the metadata of its distribution; None where there is none, as for a command."""
    program = Path(environment.prefix[0])
    # `vllm` of a virtual environment lies beside its interpreter.
    python = str(program if environment.is_python else program.with_name("python"))
    env = os.environ | ({"PYTHONPATH": str(environment.pythonpath)} if environment.pythonpath else {})
    try:
        asked = subprocess.run([python, "-c", ASK, engine], capture_output=True, text=True, check=False,
                               timeout=TIMEOUT_S, env=env)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip() or None if asked.returncode == 0 else None
