"""Copies run folders to a store that fsspec reaches, such as an S3 bucket, and back, and removes old ones there."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_llmperf.bounded_file import check_inside
from pytest_llmperf.errors import ConfigError, UsageError
from pytest_llmperf.masking import mask
from pytest_llmperf.process.places import temporary_folder
from pytest_llmperf.results.reader import chosen_run, stored_runs

SESSION = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}")
EVERY, RESULTS = re.compile(r".+"), re.compile(r"(?:tests/)?[^/]+\.json")
BEGUN = "begun"  # a folder with an empty file for each session that has not copied its run folder yet


class RunStore:
    """A store of run folders, one folder a session.

    Args:
        url: of the store.
        days: age from which `add` removes sessions; 0: they stay.
    """

    def __init__(self, url: str, days: float = 0.0) -> None:
        self._url, self._days = url, days

    def begin(self, session: str, runs_dir: Path) -> list[Path]:
        """Write the first file of a session, so that a store that refuses is known before anything starts.

        Args:
            runs_dir: folder of the run folders.

        Returns:
            The run folders of earlier sessions that ended before they copied their run folder.

        Raises:
            ConfigError: the store cannot be written, or the package that reaches it is not installed.
        """
        with self._explained("refuses files"), tempfile.NamedTemporaryFile(dir=temporary_folder()) as empty:
            system, root = self._opened
            self._put({Path(empty.name): f"{BEGUN}/{session}"})
            unfinished = {path.rpartition("/")[2] for path in system.ls(f"{root}/{BEGUN}", detail=False)} - {session}
        return [folder for folder in stored_runs(runs_dir) if folder.name in unfinished]

    def add(self, folder: Path, now: datetime) -> str:
        """Copy a run folder, and remove sessions older than `days`.

        Args:
            now: the wall clock.

        Returns:
            The URL of the copy.

        Raises:
            ConfigError: the store cannot be written.
        """
        with self._explained("refuses files"):
            self._put({path: f"{folder.name}/{path.relative_to(folder)}"
                       for path in sorted(folder.rglob("*")) if path.is_file()})
            system, root = self._opened
            if system.exists(begun := f"{root}/{BEGUN}/{folder.name}"):
                system.rm(begun)
            if self._days:
                self._remove_outdated(now)
        return mask(f"{self._url.rstrip('/')}/{folder.name}")

    def fetch(self, named: str, into: Path) -> Path:
        """Copy a run folder of this store to this machine.

        Args:
            named: id of the run, a part of the id, or "newest".
            into: existing folder that gets the copy.

        Raises:
            ConfigError: the store cannot be read, or the package that reaches it is not installed.
            UsageError: there is no such run, or several.
        """
        if not (runs := self.runs() if re.search("://.", self._url) else []):
            raise UsageError(f"{mask(self._url)}/{named}: no run is stored there. Write the URL of the store and a "
                             "run: s3://BUCKET/FOLDER/newest.")
        run = chosen_run(named, runs, mask(self._url))
        self._get(run, into, EVERY)
        return into / run

    def fetch_all(self, into: Path) -> None:
        """Copy the results of all runs of this store to this machine, without requests, profiles and logs.

        Args:
            into: existing folder that gets a folder of each run.

        Raises:
            ConfigError, UsageError: as of `fetch`.
        """
        for run in self.runs():
            self._get(run, into, RESULTS)

    def runs(self) -> list[str]:
        """Ids of the sessions in this store, oldest first.

        Raises:
            ConfigError: the store cannot be read, or the package that reaches it is not installed.
        """
        with self._explained("cannot be read"):
            return self._sessions()

    def _sessions(self) -> list[str]:
        system, root = self._opened
        names = (path.rstrip("/").rpartition("/")[2] for path in system.ls(root, detail=False))
        return sorted(filter(SESSION.fullmatch, names))

    def _put(self, files: dict[Path, str]) -> None:
        system, root = self._opened
        system.put(list(map(str, files)), [f"{root}/{name}" for name in files.values()])

    def _get(self, run: str, into: Path, wanted: re.Pattern[str]) -> None:
        with self._explained("cannot be read"):
            system, root = self._opened
            files = {path: path.removeprefix(f"{root}/{run}/") for path in system.find(f"{root}/{run}")}
            copies = {path: into / run / name for path, name in files.items() if wanted.fullmatch(name)}
            for copy in copies.values():
                check_inside(copy, into)
                copy.parent.mkdir(parents=True, exist_ok=True)
            system.get(list(copies), list(map(str, copies.values())))

    def _remove_outdated(self, now: datetime) -> None:
        system, root = self._opened
        oldest = f"{(now - timedelta(days=self._days)).astimezone(UTC):%Y%m%dT%H%M%SZ}"
        for session in self._sessions():
            if session < oldest:
                system.rm(f"{root}/{session}", recursive=True)

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """The file system of the store, and the path of the store there."""
        from fsspec.core import url_to_fs

        system, root = url_to_fs(self._url)
        if hasattr(system, "auto_mkdir"):  # a folder of this machine; an object store has none to make
            system.auto_mkdir = True
        return system, root.rstrip("/")

    @contextmanager
    def _explained(self, problem: str) -> Iterator[None]:
        try:
            yield
        except ImportError as error:
            raise ConfigError(f"The run store {mask(self._url)!r} needs a package that is not installed ({error}). Run "
                              "`pip install 'pytest-llmperf[store]'`, which reaches S3.") from error
        except Exception as error:  # each store raises errors of its own
            text = mask(" ".join(str(error).split()))[:300] or "no reason"
            raise ConfigError(
                f"The run store {mask(self._url)!r} {problem}: {type(error).__name__}: {text}. Correct the URL, the "
                "credentials or the rights, or name another store."
            ) from error
