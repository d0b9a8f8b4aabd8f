"""Where results come from: this host, this commit, this day."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from pytest_llmperf.baseline.model import Provenance

GIT_TIMEOUT_S = 10.0


def host_digest() -> str:
    """Tells hosts apart without naming them."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:12]


def provenance(root: Path, session: str, now: datetime, ignored: str) -> Provenance:
    """What is stored beside values.

    Args:
        root: of the project; outside git there is no commit and nothing is dirty.
        session: its id.
        now: wall clock.
        ignored: folder whose changes do not count: the baselines themselves.
    """
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", f":(exclude){ignored}")
    return Provenance(session, f"{now.astimezone(UTC):%Y-%m-%d}", commit or None, bool(changed), host_digest())


def _git(root: Path, *arguments: str) -> str:
    """What git says; nothing where there is no git, or no repository."""
    try:
        found = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False,
                               timeout=GIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
