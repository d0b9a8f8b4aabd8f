"""The provenance of results: host, commit and date. Each run folder contains a provenance file."""

from __future__ import annotations

import hashlib
import json
import platform
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from pytest_llmperf.errors import BaselineError, UsageError
from pytest_llmperf.process.git import git
from pytest_llmperf.process.scratch import write_whole
from pytest_llmperf.results.baseline import Provenance
from pytest_llmperf.results.reader import read_session
from pytest_llmperf.results.strict_json import read_json
from pytest_llmperf.telemetry.hardware import Hardware
from pytest_llmperf.version import VERSION

SCHEMA = 1
#: Commit and changes in one answer. Settings of the user and of submodules hide no change.
STATUS = ("status", "--porcelain=v2", "--branch", "--untracked-files=no", "--ignore-submodules=untracked", "--", ".")
OID, NO_COMMIT = "# branch.oid ", "(initial)"
HOSTS = "hosts"  # of a session that went on elsewhere
CANARY = "canary"
FILE = "session.json"
VIRTUAL_HOST = "virtual"
REPAIR = "Take the folder of one pytest run, .llmperf/runs/DATE-ID, whole"


def session_id(now: datetime, rng: random.Random) -> str:
    """"20261121T112233Z-ab12cd": sorts by time, and no other session has it."""
    return f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{rng.getrandbits(24):06x}"


def host_digest(hardware: Hardware, *, virtual: bool = False) -> str:
    """A digest of the host, which does not reveal the name of the host. In virtual time all hosts have the same digest.

    The digest includes GPU ids, because rented machines often share a host name.
    """
    if virtual:
        return VIRTUAL_HOST
    identifiers = [platform.node(), *(gpu.uuid for gpu in hardware.gpus)]
    return hashlib.sha256("\n".join(identifiers).encode()).hexdigest()[:12]


def provenance(root: Path, session: str, now: datetime, ignored: Sequence[str], host: str) -> Provenance:
    """The provenance that is stored with values.

    Args:
        root: root of the project. Outside git the provenance has no commit and is never dirty. If git does not tell the
            commit, the provenance is dirty and has the reason.
        session: session id.
        now: wall-clock time.
        ignored: paths in the project whose changes do not make it dirty: the baselines themselves.
        host: see `host_digest`.
    """
    within = [path for path in ignored if (root / path).resolve().is_relative_to(root.resolve())]
    git_error: str | None = None
    try:
        commit, dirty = _commit(git(root, *STATUS, *(f":(exclude){path}" for path in within)))
        if commit is None and dirty:
            git_error = "the repository has no commit yet"
    except UsageError as error:
        commit, dirty, git_error = None, True, str(error)  # an unknown status is not clean
    return Provenance(session, f"{now.astimezone(UTC):%Y-%m-%d}", commit, dirty, host, git_error)


def _commit(status: bytes | None) -> tuple[str | None, bool]:
    """The commit of a status, and whether files differ from it. None: no repository."""
    if status is None:
        return None, False
    lines = status.decode("utf-8", "replace").splitlines()
    commit = next((line.removeprefix(OID) for line in lines if line.startswith(OID)), NO_COMMIT)
    return (None, True) if commit == NO_COMMIT else (commit[:12], any(not line.startswith("#") for line in lines))


def write_provenance(run_dir: Path, origin: Provenance) -> None:
    """Leave it in the run folder.

    Raises:
        OSError: the file cannot be written.
    """
    content = {"schema": SCHEMA, "pytest_llmperf": VERSION, **asdict(origin)}
    write_whole(run_dir / FILE, f"{json.dumps(content, indent=1)}\n".encode())


def add_to_provenance(run_dir: Path, facts: Mapping[str, object]) -> None:
    """Add what is only known at the end of a session to its provenance file; without a file nothing is written.

    Args:
        facts: key → value as JSON.

    Raises:
        OSError: the file cannot be written.
        BaselineError: the file is not JSON.
    """
    path = run_dir / FILE
    if path.is_file():
        content = {name: node.value for name, node in read_json(path, run_dir).table().items()}
        write_whole(path, f"{json.dumps(content | dict(facts), indent=1)}\n".encode())


def add_host(run_dir: Path, host: str) -> None:
    """Note that a session went on in this run folder on this host; a single host is in the provenance already.

    Raises:
        OSError: the file cannot be written.
    """
    stored = read_session(run_dir)
    earlier = stored.get(HOSTS, [stored.get("host")])
    if isinstance(earlier, list) and host not in earlier:
        add_to_provenance(run_dir, {HOSTS: [*earlier, host]})


def lacks_canary(run_dir: Path, host: str) -> bool:
    """Whether the provenance has no canary of this host yet."""
    return all(entry.get("host") != host for entry in _canaries(run_dir))


def add_canary(run_dir: Path, host: str, values: Mapping[str, object]) -> None:
    """Note how fast this host is at fixed work, see `telemetry.canary`.

    Raises:
        OSError: the file cannot be written.
    """
    add_to_provenance(run_dir, {CANARY: [*_canaries(run_dir), {"host": host, **values}]})


def _canaries(run_dir: Path) -> list[dict[str, object]]:
    stored = read_session(run_dir).get(CANARY)
    return [entry for entry in stored if isinstance(entry, dict)] if isinstance(stored, list) else []


def read_provenance(run_dir: Path) -> Provenance:
    """The provenance of a run folder.

    Raises:
        BaselineError: the provenance is missing or invalid.
    """
    path = run_dir / FILE
    try:
        top = read_json(path, run_dir)
    except OSError as error:
        raise BaselineError(f"{path} cannot be read: {error.strerror}. {REPAIR}.") from error
    table = top.table()
    if "schema" in table and table["schema"].integer() > SCHEMA:
        raise BaselineError(
            f"{path}: schema {table['schema'].value}, and this pytest-llmperf reads {SCHEMA}. Install a newer one."
        )
    if HOSTS in table:
        raise BaselineError(f"{path}: this session was continued on another host, and a baseline has one host per "
                            "session. Measure on one host, without --resume.")
    fields = top.fields(("schema", "session", "date", "commit", "dirty", "host"), optional=table)
    return Provenance(
        session=fields["session"].text(),
        date=fields["date"].text(),
        commit=fields["commit"].text_or_none(),
        dirty=fields["dirty"].flag(),
        host=fields["host"].text(),
        git_error=fields["git_error"].text_or_none() if "git_error" in fields else None,
    )

