"""Reads a release from the wheel of an engine. Nothing is installed, and no other package is needed."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from pytest_llmperf.engines.releases import parser_reader
from pytest_llmperf.engines.releases.source_reader import source_facts
from pytest_llmperf.errors import UsageError, did_you_mean, refuse
from pytest_llmperf.process.places import temporary_folder
from pytest_llmperf.releases.stored import Release, description, known_engines, release, version_numbers, versions

VERSION = re.compile(r"\d+(\.\d+)+([a-z]+\d+|\.post\d+|\+[a-z0-9.]+)*")
PINNED = re.compile(r"Requires-Dist: ([A-Za-z0-9_.-]+) ?\(?==([^;,\s)]+)\)?\s*$")
DOWNLOAD_TIMEOUT_S = 1800.0
PARSER_TIMEOUT_S = 300.0
LEAST_FLAGS = 20
UNREACHABLE = ("Max retries", "NewConnectionError", "Connection", "Temporary failure in name resolution", "timed out",
               "ProxyError", "SSLError", "ConnectTimeout", "HTTP error 5")
NO_SPACE = "No space left on device"
FULL = ("the disk of {} is full. A wheel needs up to 1 GB until it is read. Free space, or name another folder by "
        "TMPDIR.")


def check(engine: str, older: str, newer: str) -> None:
    """Refuse names that cannot be compared.

    Raises:
        UsageError: an unknown engine, a text that is no version, or the same version twice.
    """
    if engine not in known_engines():
        raise UsageError(f"{engine}: the engine can be {', '.join(known_engines())}.")
    for version in (older, newer):
        if not VERSION.fullmatch(version):
            raise UsageError(f"{engine} {version}: write the version as numbers with dots, such as "
                             f"{versions(engine)[-1]}.")
    if version_numbers(older) == version_numbers(newer):
        raise UsageError(f"{engine} {older} → {newer}: both versions are the same. Name an older and a newer version.")


def release_of(engine: str, version: str, cache: Path, tell: Callable[[str], object] = str) -> Release:
    """A version: stored in this package, read before, or read now from a wheel that pip downloads.

    Args:
        cache: folder for what was read before.
        tell: gets a line before each long step.

    Raises:
        UsageError: the package index has no such version or does not answer, the wheel cannot be read, or the disk is
            full.
    """
    if (stored := release(engine, version) or release(engine, f"{version}.0")) is not None:
        return stored
    file = cache / f"{engine}-{version}.json"
    if file.is_file():
        try:
            return Release(**json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            file.unlink()
    facts = read_from_index(engine, version, tell)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(facts)), encoding="utf-8")
    except OSError as error:
        _refuse_full_disk(error, cache)
        raise UsageError(f"{cache}: {error}. Name another folder by --cache.") from error
    return facts


def read_from_index(engine: str, version: str, tell: Callable[[str], object] = str) -> Release:
    """A version from its wheel, which pip downloads into a temporary folder. Errors are as in `release_of`.

    Args:
        version: "" for the newest version.
    """
    with tempfile.TemporaryDirectory(prefix="llmperf-wheel-", dir=temporary_folder()) as folder:
        try:
            wheel = _download(engine, version, Path(folder), tell)
            return read_wheel(engine, version or wheel.name.split("-")[1], wheel, tell)
        except OSError as error:
            _refuse_full_disk(error, Path(folder))
            raise


def read_wheel(engine: str, version: str, wheel: Path, tell: Callable[[str], object] = str) -> Release:
    """A version from a wheel on disk.

    Raises:
        UsageError: the wheel is no wheel, or its parser cannot be read.
    """
    tell(f"Reading {wheel.name}.")
    how = description(engine)
    with tempfile.TemporaryDirectory(prefix="llmperf-wheel-", dir=temporary_folder()) as folder:
        try:
            with zipfile.ZipFile(wheel) as files:
                names = [name for name in files.namelist() if name.endswith((".py", "/METADATA"))]
                files.extractall(folder, names)
        except zipfile.BadZipFile as error:
            raise UsageError(f"{wheel} is no wheel ({error}). Remove the file and download the wheel again.") from error
        root = Path(folder)
        facts = source_facts(root / how["package"], how["metric"], how["variable"], how["cited"])
        flags = _flags(root, how, f"{engine} {version}")
        return Release(engine, version, flags=flags, packages=_packages(root), **facts)


def _download(engine: str, version: str, folder: Path, tell: Callable[[str], object]) -> Path:
    name = description(engine)["distribution"] + (f"=={version}" if version else "")
    tell(f"Downloading the wheel of {name} with pip.")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps",
               "--no-input", "--only-binary", ":all:", "--no-cache-dir", "--retries", "2", "--dest", str(folder), name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False,
                              timeout=DOWNLOAD_TIMEOUT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise UsageError(f"{name}: pip did not download the wheel within {DOWNLOAD_TIMEOUT_S:g} s. Try again, or name "
                         "a nearer index (PIP_INDEX_URL).") from None
    if done.returncode != 0:
        _refuse_download(engine, version, done.stderr)
    return next(folder.glob("*.whl"))


def _refuse_download(engine: str, version: str, output: str) -> NoReturn:
    """The sentence for what pip says."""
    refuse(
        ("No module named pip" in output,
         f"{engine} {version}: {sys.executable} has no pip for the download. Install pip: "
         f"{sys.executable} -m ensurepip."),
        (NO_SPACE in output, f"{engine} {version}: {FULL.format(temporary_folder())}"),
        error=UsageError,
    )
    offered = re.findall(r"from versions: ([^)]*)\)", output)
    if offered and offered[-1] not in ("", "none"):
        names = offered[-1].split(", ")
        raise UsageError(f"{engine} {version}: the package index has no wheel of this version for Python "
                         f"{sys.version_info.major}.{sys.version_info.minor}; the newest is {names[-1]}."
                         f"{did_you_mean(version, names, ' Did you mean {}?')} Name a version that the index has.")
    if any(word in output for word in UNREACHABLE):
        raise UsageError(f"{engine} {version}: the package index does not answer. Check the network and PIP_INDEX_URL. "
                         f"Stored versions need no index: {', '.join(versions(engine))}.")
    lines = output.strip().splitlines() or ["no output"]
    raise UsageError(f"{engine} {version}: pip cannot download the wheel: {lines[-1]}. Try it by hand: pip download "
                     f"--no-deps {engine}=={version}.")


def _flags(root: Path, how: Mapping[str, Any], name: str) -> dict[str, Any]:
    command = [sys.executable, "-I", "-S", parser_reader.__file__, str(root), how["parser_class"], *how["parsers"]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False,
                              timeout=PARSER_TIMEOUT_S, stdin=subprocess.DEVNULL, cwd=root)
    except subprocess.TimeoutExpired:
        raise UsageError(f"{name}: its argument parser was not built within {PARSER_TIMEOUT_S:g} s. Try again on a "
                         "less busy machine.") from None
    lines = done.stdout.strip().splitlines()
    try:
        flags: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        flags = {}
    if done.returncode != 0 or len(flags) < LEAST_FLAGS:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UsageError(f"{name}: its argument parser cannot be read ({reason}). If the parser moved, add its place "
                         f"to pytest_llmperf/engines/{how['package']}/releases/reading.json.")
    return flags


def _packages(root: Path) -> dict[str, dict[str, str]]:
    """Requirements that are pinned on every platform."""
    metadata = next(root.glob("*.dist-info/METADATA")).read_text(encoding="utf-8", errors="replace")
    pins = (PINNED.fullmatch(line) for line in metadata.splitlines())
    return {match[1].lower(): {"version": match[2]} for match in pins if match}


def _refuse_full_disk(error: OSError, folder: Path) -> None:
    if error.errno == errno.ENOSPC:
        raise UsageError(FULL.format(folder)) from error
