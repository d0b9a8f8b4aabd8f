"""Copies run folders to a store that fsspec reaches, such as an S3 bucket, and removes old ones there."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.masking import mask
from pytest_llmperf.process.places import temporary_folder

if TYPE_CHECKING:
    from pytest_llmperf.config.settings import Settings

SESSION = re.compile(r"(\d{8}T\d{6}Z)-[0-9a-f]{6}")
BEGUN = "begun"  # an empty file in the folder of each session


class RunStore:
    """The store of a project's run folders, one folder a session.

    Args:
        settings: `runs_store`, the URL, and `runs_store_days`.
    """

    def __init__(self, settings: Settings) -> None:
        self._url, self._days = settings.runs_store, settings.runs_store_days

    def begin(self, session: str) -> None:
        """Write the first file of a session, so that a store that refuses is known before anything starts.

        Raises:
            ConfigError: the store cannot be written, or the package that reaches it is not installed.
        """
        with self._explained(), tempfile.NamedTemporaryFile(dir=temporary_folder()) as empty:
            self._put({Path(empty.name): f"{session}/{BEGUN}"})

    def add(self, folder: Path, now: datetime) -> str:
        """Copy a run folder, and remove sessions older than `runs_store_days`.

        Args:
            now: the wall clock.

        Returns:
            The URL of the copy.

        Raises:
            ConfigError: the store cannot be written.
        """
        with self._explained():
            self._put({path: f"{folder.name}/{path.relative_to(folder)}"
                       for path in sorted(folder.rglob("*")) if path.is_file()})
            if self._days:
                self._remove_outdated(now)
        return mask(f"{self._url.rstrip('/')}/{folder.name}")

    def _put(self, files: dict[Path, str]) -> None:
        system, root = self._opened
        system.put(list(map(str, files)), [f"{root}/{name}" for name in files.values()])

    def _remove_outdated(self, now: datetime) -> None:
        system, root = self._opened
        oldest = f"{(now - timedelta(days=self._days)).astimezone(UTC):%Y%m%dT%H%M%SZ}"
        for path in system.ls(root, detail=False):
            name = path.rstrip("/").rpartition("/")[2]
            if (match := SESSION.fullmatch(name)) and match[1] < oldest:
                system.rm(f"{root}/{name}", recursive=True)

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """The file system of the store, and the path of the store there."""
        from fsspec.core import url_to_fs

        system, root = url_to_fs(self._url)
        if hasattr(system, "auto_mkdir"):  # a folder of this machine; an object store has none to make
            system.auto_mkdir = True
        return system, root.rstrip("/")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except ImportError as error:
            raise ConfigError(f"runs_store = {mask(self._url)!r} needs a package that is not installed ({error}). Run "
                              "`pip install 'pytest-llmperf[store]'`, which reaches S3.") from error
        except Exception as error:  # each store raises errors of its own
            text = mask(" ".join(str(error).split()))[:300] or "no reason"
            raise ConfigError(
                f"The store runs_store = {mask(self._url)!r} refuses files: {type(error).__name__}: {text}. Correct "
                "the URL, the credentials or the rights, or choose another store."
            ) from error
