"""Runs git for all other modules. Only "not a git repository" means no repository; other refusals are errors."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from pytest_llmperf.errors import UsageError

TIMEOUT_S = 30.0
NO_REPOSITORY = "not a git repository (or any"  # without "(or any" a broken .git file names a missing repository
# git must not run programs that the repository names, wait for a terminal, translate messages or write the index.
CONFIG = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
ENVIRONMENT = {"LC_ALL": "C", "LANGUAGE": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
ADVICE = "git config --global --add"


def git(root: Path, *arguments: str, timeout_s: float = TIMEOUT_S) -> bytes | None:
    """Output of git in a folder; None if the folder lies in no repository.

    The variables GIT_* of this process do not reach git: a hook exports its own repository as GIT_DIR.

    Args:
        root: the folder.
        arguments: subcommand and its arguments.
        timeout_s: longest wait for git.

    Raises:
        UsageError: git is missing, refuses, or does not answer. The message is one sentence with git's own words.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | ENVIRONMENT
    try:
        done = _run(["git", *CONFIG, "-C", str(root), *arguments], environment, timeout_s)
    except FileNotFoundError as error:
        raise UsageError("git is not on the PATH") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"git {arguments[0]} did not answer within {timeout_s:g} s") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"git cannot run: {error}") from error
    text = done.stderr.decode("utf-8", "replace")
    if done.returncode == 0:
        return done.stdout
    if NO_REPOSITORY in text:
        return None
    raise UsageError(f"git {arguments[0]} refuses: {_refusal(text) or f'exit code {done.returncode}'}")


def _run(command: list[str], environment: dict[str, str], timeout_s: float) -> subprocess.CompletedProcess[bytes]:
    """Run a command in a session of its own, so that no child of a command that hangs stays."""
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, start_new_session=True) as process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _refusal(text: str) -> str:
    """git's reason in one line, with the command that git advises."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[0] if lines else "")
    advice = [f"; git advises: {line}" for line in lines if line.startswith(ADVICE)]
    return "".join([reason, *advice[:1]])
