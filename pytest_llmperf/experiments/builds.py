"""What `llmperf bisect` compares, oldest first: releases, commits, or values of a flag."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from pytest_llmperf.engines.process.environment import Installations
from pytest_llmperf.engines.process.installed import version_in
from pytest_llmperf.errors import EnvironmentMissing, InfrastructureError, UsageError, echo
from pytest_llmperf.process.git import git
from pytest_llmperf.process.kernel import end_child

RANGE = re.compile(r"(?:(?P<package>[A-Za-z0-9_.-]+)(?P<equals>==?))?(?P<first>[^=]+?)\.\.(?P<last>[^=]+)")
VERSION = re.compile(r"\w[\w.!+-]*")  # also the name of a folder
VERSION_BUILD = "{python} -m venv {folder} && {folder}/bin/python -m pip install -q {package}=={version}"
GIT_TIMEOUT_S = 60.0
STOP_LIMIT_S = 10.0  # of an interrupted build command


class BuildFailed(InfrastructureError):
    """A build that cannot be made; the search goes on without it."""


class Candidates(Protocol):
    """Builds in order. The first one is the reference of each comparison."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def options(self, build: int, notify: Callable[[str], None]) -> list[str]:
        """Options of pytest that compare a build with the first build.

        Raises:
            BuildFailed: the build cannot be made.
        """

    def described(self, build: int) -> str:
        """The name, with the subject of the commit if one is known."""


@dataclass(frozen=True, slots=True)
class FlagValues:
    """Values of an engine's flag, as typed.

    Args:
        engine: "vllm".
        flag: name of the flag.
        names: the values.
        place: the engine's environment, for both sides.
    """

    engine: str
    flag: str
    names: tuple[str, ...]
    place: str

    def options(self, build: int, _notify: Callable[[str], None]) -> list[str]:
        return [f"--plant-flag={self.engine}:{self.flag}={self.names[build]}",
                f"--plant-flag={self.engine}:reference:{self.flag}={self.names[0]}",
                f"--llmperf-reference={self.engine}={self.place}"]

    def described(self, build: int) -> str:
        return f"{self.flag}={self.names[build]}"


@dataclass(frozen=True, slots=True)
class Builds:
    """Builds that a shell command makes, each in a folder of its own.

    Args:
        engine: "vllm".
        names: versions or commits.
        command: the command; it makes an environment in {folder} from {version} or {commit}.
        folder: keeps the environments and the output of each command.
        directory: where the command runs.
        subjects: name → subject of the commit.
    """

    engine: str
    names: tuple[str, ...]
    command: str
    folder: Path
    directory: Path
    subjects: dict[str, str] = field(default_factory=dict)

    def options(self, build: int, notify: Callable[[str], None]) -> list[str]:
        reference, candidate = (self._made(self.names[each], notify) for each in (0, build))
        return [f"--llmperf-engine={self.engine}={candidate}", f"--llmperf-reference={self.engine}={reference}"]

    def described(self, build: int) -> str:
        name = self.names[build]
        return f"{name} ({self.subjects[name]})" if name in self.subjects else name

    def _made(self, name: str, notify: Callable[[str], None]) -> Path:
        """The environment of a build. A folder without its mark is what an interrupted or failed command left.

        Raises:
            BuildFailed: the command failed.
        """
        place, mark, log = (self.folder / f"{name}{suffix}" for suffix in ("", ".built", ".log"))
        if mark.exists() and place.is_dir():
            return place
        shutil.rmtree(place, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        notify(f"{name}: the build begins (output: {log})")
        words = {"{commit}": name, "{version}": name, "{folder}": str(place), "{python}": sys.executable}
        command = self.command
        for word, value in words.items():
            command = command.replace(word, shlex.quote(value))
        with log.open("wb") as output:
            code = _run_to_end(command, self.directory, output)
        if code or not self._has_engine(place):
            lines = log.read_text("utf-8", "replace").strip().splitlines()
            shutil.rmtree(place, ignore_errors=True)
            why = f"exit code {code}" if code else f"it made no environment with {self.engine} in {place}"
            raise BuildFailed(f"the build command failed ({why}): {lines[-1] if lines else 'no output'}. "
                              f"Correct --build; output: {log}")
        mark.touch()
        return place

    def _has_engine(self, place: Path) -> bool:
        with suppress(EnvironmentMissing):
            environment = Installations({self.engine: str(place)}, place, "").find_environment(self.engine)
            return version_in(environment, self.engine) is not None
        return False


def _run_to_end(command: str, directory: Path, output: BinaryIO) -> int:
    """Exit code of a shell command. An interrupt ends all processes of the command."""
    build = subprocess.Popen(["sh", "-c", command], cwd=directory, stdin=subprocess.DEVNULL, stdout=output,
                             stderr=subprocess.STDOUT, process_group=0)
    try:
        return build.wait()
    except BaseException:
        os.killpg(build.pid, signal.SIGTERM)
        end_child(build, STOP_LIMIT_S)
        raise


def versions(text: str, engine: str, command: str | None, folder: Path) -> Builds:
    """Releases from "A..B", "PACKAGE==A..B" (each release of the package between the two), or "A,B,C".

    Raises:
        UsageError: the text has no such form, an end is no release, or the ends are equal.
    """
    package, listed = engine, [part.strip() for part in text.split(",")]
    if len(listed) == 1:
        match = RANGE.fullmatch(text)
        if match is None or match["equals"] == "=":
            raise UsageError(f"--versions {text}: write --versions 0.31.0..0.33.0, --versions vllm==0.31.0..0.33.0, or "
                             "each version: --versions 0.31.0,0.32.0,0.33.0.")
        package = match["package"] or engine
        releases = _releases(package)
        for end in (match["first"], match["last"]):
            if end not in releases:
                raise UsageError(f"--versions {text}: {package} has no release {end}. Releases: "
                                 f"{', '.join(releases[-8:])}. Write two of them, or each version with commas.")
        first, last = releases.index(match["first"]), releases.index(match["last"])
        listed = releases[first : last + 1]
        if first > last:
            raise UsageError(f"--versions {text}: {match['last']} is older than {match['first']}. Write the older "
                             "version first.")
    if faulty := [name for name in listed if not VERSION.fullmatch(name)]:
        raise UsageError(f"--versions {text}: {faulty[0]!r} is no version. Write --versions 0.31.0,0.32.0,0.33.0.")
    _check_ends("--versions", text, listed)
    template = (VERSION_BUILD if command is None else command).replace("{package}", package)
    _check_words(template, "version")
    return Builds(engine, tuple(listed), template, folder, Path.cwd())


def _releases(package: str) -> list[str]:
    """The releases of a package that pip can install here, oldest first.

    Raises:
        UsageError: pip knows no such package.
    """
    done = subprocess.run([sys.executable, "-m", "pip", "index", "versions", package],
                          capture_output=True, text=True, check=False)
    found = re.search(r"Available versions: (.*)", done.stdout)
    if found is None:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise UsageError(f"pip finds no releases of {package}: {lines[-1] if lines else 'no answer'}. Write each "
                         "version: --versions 0.31.0,0.32.0,0.33.0.")
    return found[1].split(", ")[::-1]


def commits(text: str, engine: str, command: str | None, folder: Path, repository: Path) -> Builds:
    """The commits A..B of a repository on the first-parent line, with A.

    Raises:
        UsageError: there is no such range, the repository is shallow or git refuses it, or the command has no words.
    """
    first, dots, last = text.partition("..")
    if not (first and dots and last) or first.startswith("-"):
        raise UsageError(f"--commits {text}: write --commits GOOD..BAD.")
    if command is None:
        raise UsageError("--commits needs --build 'COMMAND {commit} {folder}', which makes an environment in {folder}.")
    _check_words(command, "commit")
    shallow = git(repository, "rev-parse", "--is-shallow-repository", timeout_s=GIT_TIMEOUT_S)
    if shallow is None:
        raise UsageError(f"{repository}: this is no git repository. Name the engine's clone: --repository FOLDER.")
    if shallow.strip() == b"true":
        raise UsageError(f"{repository}: the clone is shallow, so commits of the range can be missing: "
                         "git fetch --unshallow.")
    ends = [_commit(repository, end) for end in (first, last)]
    if ends[0] == ends[1]:
        raise UsageError(f"--commits {text}: {first} and {last} are the same commit. Write GOOD..BAD.")
    rows = _lines(repository, "log", "--first-parent", "--reverse", "--format=%H %s", f"{ends[0]}..{ends[1]}")
    if not rows or _lines(repository, "merge-base", *ends) != ends[:1]:
        raise UsageError(f"--commits {text}: {last} does not come after {first}. Write the older commit first.")
    subjects = {name[:12]: subject for name, _, subject in (row.partition(" ") for row in rows)}
    return Builds(engine, (ends[0][:12], *subjects), command, folder, repository, subjects)


def _commit(repository: Path, name: str) -> str:
    try:
        return _lines(repository, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")[0]
    except UsageError as error:
        raise UsageError(f"--commits: {repository} has no commit {echo(name)}. Fetch it, or correct its name."
                         ) from error


def _lines(repository: Path, *arguments: str) -> list[str]:
    return (git(repository, *arguments, timeout_s=GIT_TIMEOUT_S) or b"").decode("utf-8", "replace").splitlines()


def flag_values(text: str, engine: str, place: Callable[[], str]) -> FlagValues:
    """Values of a flag from "NAME=V1,V2,V3".

    Raises:
        UsageError: the text has no such form, or the ends are equal.
    """
    name, equals, values = text.partition("=")
    listed = [part.strip() for part in values.split(",")]
    if not equals or not name.strip() or not all(listed):
        raise UsageError(f"--flag {text}: write --flag NAME=V1,V2,…, e.g. --flag max_num_batched_tokens=512,1024,2048.")
    _check_ends("--flag", text, listed)
    return FlagValues(engine, name.strip().lstrip("-").replace("-", "_"), tuple(listed), place())


def _check_ends(option: str, text: str, listed: Sequence[str]) -> None:
    if len(listed) < 2 or listed[0] == listed[-1]:
        raise UsageError(f"{option} {text}: both ends are {listed[0]}. Name two ends that differ.")
    if len(set(listed)) < len(listed):
        raise UsageError(f"{option} {text}: a value stands twice. Name each value once.")


def _check_words(command: str, word: str) -> None:
    if missing := [each for each in (word, "folder") if f"{{{each}}}" not in command]:
        raise UsageError(f"--build {command!r}: {{{missing[0]}}} is missing. "
                         f"Write --build 'COMMAND {{{word}}} {{folder}}'.")
