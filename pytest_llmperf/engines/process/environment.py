"""Finds the environment of an engine. Each engine has a separate environment, because engines pin different PyTorch
versions."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pytest_llmperf.config.emulation import GPUS, Emulation
from pytest_llmperf.config.settings import expanded
from pytest_llmperf.errors import ConfigError, EnvironmentMissing
from pytest_llmperf.kinds import GPU_KINDS, SHIPPED_NAMES
from pytest_llmperf.kinds.rows import row_of_kind
from pytest_llmperf.masking import mask, secret_values
from pytest_llmperf.model.engine import REFERENCE
from pytest_llmperf.process.launch import mask_argv
from pytest_llmperf.version import PACKAGE_DIR

EMULATOR = (sys.executable, "-m", "pytest_llmperf.emulator")
BY_MAKE = {"vllm": "make engine-vllm-cpu", "sglang": "make engine-sglang-cpu", "lm_eval": "make lm-eval",
           "vllm_router": "make routers", "sglang_router": "make routers"}
# An engine that another engine's environment has, too; both routers are installed into one environment.
SHARED = {"transformers": "vllm", "vllm_router": "routers", "sglang_router": "routers"}
# What pip installs, where it is not the engine's name.
DISTRIBUTIONS = {"lm_eval": "'lm_eval[api]' transformers", "vllm_router": "vllm-router",
                 "sglang_router": "sglang-router"}
COMMAND = "{command}"  # the last word of a container's command
ASSIGNED = re.compile(r"(?:^|=)(\w+)=(.+)")
CONTAINER_PYTHON = "python3"
INSTALLER = Path("scripts", "install_engine.py")  # what make calls: only a clone of ours has it


@dataclass(frozen=True, slots=True)
class Environment:
    """How to run an engine's command.

    Args:
        prefix: what comes before the engine's own arguments: an interpreter, or a command such as ("vllm",).
        is_python: whether `prefix` is an interpreter, so that "-m MODULE" must follow.
        pythonpath: folder of an unpacked bundle, for an interpreter that does not have the engine itself.
        origin: where it was found, for people.
        is_container: `prefix` starts a container. {name} in it is the container's name, {env} its variables.
    """

    prefix: tuple[str, ...]
    is_python: bool
    pythonpath: Path | None
    origin: str
    is_container: bool = False

    def command(self, container: str = "", variables: Iterable[str] = ()) -> tuple[str, ...]:
        """The prefix for one process.

        Args:
            container: name of the container. Without a container, the name has no effect.
            variables: names of the variables that the container takes over from its client. Their values are not part
                of the command line.
        """
        if not self.is_container:
            return self.prefix
        options = [word for name in sorted(variables) for word in ("--env", name)]
        words = [options if word == "{env}" else [word.replace("{name}", container)] for word in self.prefix]
        return tuple(word for group in words for word in group)

    def secrets(self) -> list[str]:
        """Secret values that a container's command contains as NAME=VALUE, to mask in the server's log."""
        words = self.prefix if self.is_container else ()
        return [secret for word in words for name, value in ASSIGNED.findall(word)
                for secret in secret_values({}, {name: value})]


@dataclass(frozen=True, slots=True)
class Installations:
    """Where engines are installed for a hardware kind.

    Args:
        engines: of the settings: "NAME" or "NAME@kind" → place.
        root: project root.
        kind: hardware kind.
    """

    engines: Mapping[str, str]
    root: Path
    kind: str

    def configured_place(self, name: str) -> str | None:
        """The configured place of an engine or of a named installation; None without a setting.

        Args:
            name: "vllm", "vllm:old".

        Raises:
            EnvironmentMissing: a named installation has no configured place.
        """
        place = self.engines.get(f"{name}@{self.kind}", self.engines.get(name))
        if place is None and ":" in name:
            raise EnvironmentMissing(f"Nobody says where {name} is installed. Name it with --llmperf-engine "
                                     f'{name}=PATH or [tool.llmperf.engines] "{name}" = "PATH".')
        return place

    def find_environment(self, name: str, package: str | None = None) -> Environment:
        """The environment of an engine, or of one of its installations ("vllm:old").

        Looks at the configured place first, then at `.engines/<engine>-<kind>` and `.engines/<engine>` below the root,
        then at these folders of an engine in `SHARED`, then whether this interpreter has the engine.

        Args:
            name: "vllm", "vllm:old".
            package: import name of the engine's package; None if this is the engine's name.

        Raises:
            EnvironmentMissing: nothing is there; names the places and the command that installs it.
        """
        engine = name.partition(":")[0]
        package = package or engine
        if (configured := self.configured_place(name)) is not None:
            return _configured(name, configured, self.root, package)
        owners = [engine, *([SHARED[engine]] if engine in SHARED else [])]
        places = [self.root / ".engines" / folder for owner in owners for folder in (f"{owner}-{self.kind}", owner)]
        for place in places:
            if place.is_dir():
                return _directory(package, place, f"Remove it and run `{_pip(package, place)}`.")
        found = find_spec(package)
        if found is not None and found.origin is not None:  # a folder of that name alone, a suite's say, is none
            return Environment((sys.executable,), True, None, "this interpreter")
        looked = ", ".join(str(place) for place in places)
        raise EnvironmentMissing(
            f"{engine} is not installed: looked at {looked} and in this interpreter. "
            f"Install it with `{_installing(engine, self.root, package)}`, or name its environment with "
            f"--llmperf-engine {engine}=PATH or [tool.llmperf.engines] {engine} = \"PATH\"."
        )


def emulator_environment(
    emulation: Emulation, engine: str, start_id: int, *, faults: bool = True, words: Sequence[str] = (),
    gpu_set: int = 0,
) -> Environment:
    """The emulator as the command of an engine. The noise differs between server starts, and is equal for start k of
    each session.

    Args:
        emulation: the emulated hardware and its options.
        engine: engine whose command line the emulator accepts.
        start_id: number of the server start within the session.
        faults: whether to plant the faults; False for the emulator as a reference build.
        words: further options of the emulator.
        gpu_set: number of the emulated GPU set.
    """
    prefix = [*EMULATOR, "--hardware", emulation.kind, "--gpus", str(GPUS), "--engine", engine]
    if emulation.kind not in SHIPPED_NAMES:
        prefix += ["--hardware-row", json.dumps(row_of_kind(GPU_KINDS[emulation.kind]))]
    if emulation.coefficients:
        prefix += ["--coefficients", emulation.coefficients]
    for fault in emulation.faults if faults else ():
        prefix += ["--fault", fault]
    prefix += ["--noise", emulation.noise, "--noise-seed", str(noise_seed(emulation.seed, start_id)),
               "--noise-gpu", str(noise_seed(emulation.seed, gpu_set)), *words, "--"]
    package = PACKAGE_DIR.parent
    return Environment(tuple(prefix), False, package, str(emulation))


def check_emulation(emulation: Emulation) -> None:
    """Ask the emulator whether it can read these faults and this noise: it alone knows them.

    Raises:
        ConfigError: the emulator cannot read them. The message lists the known faults.
    """
    from pytest_llmperf.emulator.options import read_options
    from pytest_llmperf.emulator.quantities import UsageError

    try:
        read_options(emulator_environment(emulation, "vllm", 0).prefix[len(EMULATOR):])
    except UsageError as error:
        raise ConfigError(re.sub(r"--(?=fault|noise)", "--emulate-", str(error))) from error


def noise_seed(session: int, start_id: int) -> int:
    """The emulator's --noise-seed at one of a session's starts."""
    return session * 1_000_000 + start_id


def _configured(name: str, value: str, root: Path, package: str) -> Environment:
    path = (root / expanded(value)).absolute()  # not resolve(): a venv's python is a link
    try:
        if path.is_dir():
            remedy = f"Correct {_named(name)}: give a folder with bin/python or the package."
            return _directory(package, path, remedy)
        if path.is_file() and os.access(path, os.X_OK):
            return Environment((str(path),), path.name.startswith("python"), None, str(path))
    except OSError as error:  # a folder that one may not enter; a command line may be longer than a name
        if error.errno != errno.ENAMETOOLONG:
            raise EnvironmentMissing(
                f"The environment of {name} is set to {mask(value)!r}, which cannot be looked at: "
                f"{mask(str(error))}. Name a place that this user can read: {_named(name)}."
            ) from error
    words = _words(value)
    if words[-1:] == [COMMAND]:
        return _container(name, words[:-1], root)
    command = shutil.which(words[0]) if words else None
    if command is not None:
        interpreter = len(words) == 1 and Path(command).name.startswith("python")
        return Environment((command, *words[1:]), interpreter, None, value)
    raise EnvironmentMissing(
        f"The environment of {name} is set to {mask(value)!r}, which is neither a folder, an interpreter nor a "
        f"command (looked at {mask(str(path))} and on PATH). Correct {_named(name)}."
    )


def _container(name: str, words: list[str], root: Path) -> Environment:
    """The environment of an engine in a container image. Its interpreter is the image's `python3`."""
    runtime = shutil.which(words[0]) if words else None
    if runtime is None:
        program = mask(words[0]) if words else "a container runtime"
        raise EnvironmentMissing(f"The container of {name} needs {program}, which is not on PATH. Install it, or "
                                 "correct engine_command in [tool.llmperf].")
    prefix = (runtime, *(word.replace("{root}", str(root)) for word in words[1:]), CONTAINER_PYTHON)
    return Environment(prefix, True, None, mask_argv([*words, CONTAINER_PYTHON]), is_container=True)


def _named(name: str) -> str:
    engine, _, installation = name.partition(":")
    if installation == REFERENCE:
        return f"--llmperf-reference {engine}=PLACE"
    return f"--llmperf-engine or [tool.llmperf.engines] {name}"


def _words(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError:  # a quote that is never closed: no command
        return []


def _directory(package: str, path: Path, remedy: str) -> Environment:
    python = path / "bin" / "python"
    if python.exists():
        return Environment((str(python),), True, None, str(path))
    if (path / package / "__init__.py").exists():
        return Environment((sys.executable,), True, path, f"{path} (bundle, run by {sys.executable})")
    raise EnvironmentMissing(
        f"{path} is not an environment of {package}: the folder contains neither bin/python nor {package}/. {remedy}"
    )


def _installing(engine: str, root: Path, package: str) -> str:
    if engine in BY_MAKE and (root / INSTALLER).is_file():
        return BY_MAKE[engine]
    return _pip(package, root / ".engines" / engine)


def _pip(package: str, place: Path) -> str:
    quoted = shlex.quote(str(place))
    return f"python3 -m venv {quoted} && {quoted}/bin/pip install {DISTRIBUTIONS.get(package, package)}"
