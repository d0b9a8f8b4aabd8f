#!/usr/bin/env python3
"""Pack an engine and this plugin, or what stands beside an engine, for a GPU host that reaches no package registry.

    python scripts/gpu_bundle.py --kind vllm --wheel dist/pytest_llmperf-*.whl
    python scripts/gpu_bundle.py --kind nixl
    python scripts/gpu_bundle.py --kind lm_eval

The script reads the pins of scripts/engines/gpu/KIND.txt (and of every --add) for Python 3.12 on x86-64 and fetches the
packages with pip. It removes files that a serving process does not load, and thins CUDA code to one compute capability
(scripts/device_code.py). The result is one tar.xz in parts with two folders: engine/ for --llmperf-engine, plugin/ for
PYTHONPATH. The two folders are separate because they pin different versions. NIXL with vllm-router, and
lm-evaluation-harness, have bundles of their own. NIXL's bundle unpacks into engine/, the harness into lm_eval/. The
script needs pip and xz, about 3 GB of free space, and some minutes, mostly for the
compression.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:  # loaded by a test, it is no script
    sys.path.insert(0, str(HERE))

from device_code import thin  # noqa: E402

PINS = HERE / "engines" / "gpu"
PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in range(39, 16, -1)), "manylinux2014_x86_64",
             "manylinux1_x86_64", "any")
JUDGE = "lm_eval"
#: Kind of a bundle that unpacks beside an engine's → the name that `--llmperf-engine` gives its folder.
BESIDE = {"nixl": "vllm_router", JUDGE: JUDGE}
SOURCES = ("**/__pycache__", "**/*.hpp", "**/*.cuh", "**/*.h", "**/*.a")


@dataclass(frozen=True)
class Recipe:
    """How to pack an engine: files to remove and files to add.

    Args:
        drop: patterns below `folder` of files that `serve` never loads on one GPU generation.
        keep: patterns of files and folders that stay although a pattern of `drop` matches.
        folder: name of the unpacked folder.
        hollow: folder of stub modules, whose names the engine imports and never uses.
        environment: environment variables that the server needs in the host's shell.
    """

    drop: tuple[str, ...]
    keep: tuple[str, ...] = ()
    folder: str = "engine"
    hollow: str | None = None
    environment: str = ""


RECIPES = {
    # Hopper: FlashAttention 3; what other attention, quantisation and front ends need is left out.
    "vllm": Recipe((
        *SOURCES, "vllm/vllm_flash_attn/_vllm_fa2_C*", "vllm/_flashmla*", "vllm/_flashkda*", "vllm/_deepselect*",
        "vllm/_qutlass_C*", "vllm/vllm-rs", "vllm/third_party/deep_gemm",
        "vllm/third_party/fmha_sm100",
    )),
    # Triton attention; headers stay, because SGLang compiles small kernels at its first start.
    "sglang": Recipe((
        "**/__pycache__", "**/*.a", "sgl_kernel/flash_ops*", "sgl_kernel/flashmla_ops*", "sgl_kernel/sm100",
        "triton_kernels", "sglang/multimodal_gen", "sglang/srt/grpc/_core*", "tools", "zstandard/_cffi*",
    ), hollow="sglang_hollow", environment="export TVM_FFI_CACHE_DIR=/tmp/sglang_jit; "),
    # UCX alone moves KV cache; the other plugins reach disks and object stores. Expert parallelism is left out, too.
    "nixl": Recipe((
        "**/__pycache__", "nixl_ep", "nixl_ep_cu13", "nixl_cu13.scripts", "nixl_cu13-*.data", "nixl_cu13.libs/nixl",
        ".nixl_cu13.mesonpy.libs/plugins/libplugin_[!U]*", "nixl_cu13.libs/*aws*", "nixl_cu13.libs/*azure*",
        "nixl_cu13.libs/libs2n*", "nixl_cu13.libs/libgusli*", "nixl_cu13.libs/libxml2*",
        "nixl_cu13.libs/ucx/*perftest*",
    )),
    # Task files of the project and GSM8K; the harness brings 14,000 files of other tasks.
    "lm_eval": Recipe((
        "**/__pycache__", "lm_eval/tasks/*/", "lm_eval-*/RECORD",
    ), keep=("lm_eval/tasks/gsm8k",), folder=JUDGE),
}  # fmt: skip


class BundleError(Exception):
    """The bundle cannot be made; the message says what to do."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--kind", choices=sorted(RECIPES), required=True, help="what to pack")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: .bundle, or .bundle/KIND of nixl and lm_eval")
    parser.add_argument("--pins", type=Path, default=PINS, metavar="DIR", help="of KIND.txt and plugin.txt")
    parser.add_argument("--add", type=Path, action="append", default=[], metavar="LIST", help="more pins")
    parser.add_argument("--wheel", type=Path, action="append", default=[], metavar="FILE", help="for plugin/")
    parser.add_argument("--drop", action="append", default=[], metavar="PATTERN", help="leave out, too")
    parser.add_argument("--capability", type=int, default=90, metavar="N", help="of the GPU; default: 90, Hopper")
    parser.add_argument("--part-mib", type=float, default=58, metavar="N", help="largest part; default: 58")
    arguments = parser.parse_args(argv)
    arguments.out = arguments.out or Path(".bundle", *([arguments.kind] if arguments.kind in BESIDE else []))
    try:
        parts = bundle(arguments)
    except BundleError as error:
        print(f"gpu_bundle: {error}", file=sys.stderr)
        return 1
    size = sum(part.stat().st_size for part in parts)
    print(f"{size / 2**20:.1f} MiB in {len(parts)} part{'s'[: len(parts) > 1]} in {arguments.out}. On the GPU host:")
    print(unpack_command(arguments.kind, arguments.out))
    return 0


def bundle(arguments: argparse.Namespace) -> list[Path]:
    """Fetch, thin out, pack; the parts, in order."""
    recipe = RECIPES[arguments.kind]
    pins = [arguments.pins / f"{arguments.kind}.txt", *arguments.add]
    with tempfile.TemporaryDirectory() as scratch:
        engine, plugin = Path(scratch, "tree", recipe.folder), Path(scratch, "tree", "plugin")
        for pin in pins:
            unpack(fetch(pin, Path(scratch, "wheels")), engine)
        if arguments.wheel:
            unpack([*fetch(arguments.pins / "plugin.txt", Path(scratch, "for-plugin")), *arguments.wheel], plugin)
        if recipe.hollow is not None:
            shutil.copytree(arguments.pins / recipe.hollow, engine, dirs_exist_ok=True)
        leave_out(engine, [*recipe.drop, *arguments.drop], recipe.keep)
        for library in engine.rglob("*.so"):
            thin(library, arguments.capability)
        return pack(engine.parent, arguments.out, round(arguments.part_mib * 2**20))


def fetch(pins: Path, into: Path) -> list[Path]:
    """The wheels of a list; where pip looks is its own setting (PIP_FIND_LINKS, PIP_NO_INDEX)."""
    if not pins.is_file():
        raise BundleError(f"{pins}: there is no such list of pins.")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
               "--python-version", "3.12", "--implementation", "cp", "--dest", str(into), "--requirement", str(pins)]
    command += [word for platform in PLATFORMS for word in ("--platform", platform)]
    earlier = set(into.glob("*.whl"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BundleError(f"pip cannot fetch what {pins} pins: {done.stderr.strip()[-500:]}")
    return sorted(set(into.glob("*.whl")) - earlier)


def unpack(wheels: Sequence[Path], into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    for wheel in wheels:
        try:
            zipfile.ZipFile(wheel).extractall(into)
        except (OSError, zipfile.BadZipFile) as error:
            raise BundleError(f"{wheel} is no wheel: {error}.") from error


def leave_out(tree: Path, patterns: Sequence[str], keep: Sequence[str] = ()) -> None:
    """Remove what matches; a pattern that matches nothing is an engine that has changed, or a typo, and is told.

    Args:
        keep: patterns of paths that stay although `patterns` match them.
    """
    stays = {path for pattern in keep for path in tree.glob(pattern)}
    for pattern in patterns:
        paths = [path for path in tree.glob(pattern) if path not in stays]
        if not paths and pattern not in SOURCES:
            print(f"gpu_bundle: nothing matches --drop {pattern}", file=sys.stderr)
        for path in paths:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def pack(tree: Path, out: Path, part_bytes: int) -> list[Path]:
    """The tree as tar.xz in parts of at most so many bytes; parts of an earlier bundle are removed."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("part.*"):
        old.unlink()
    tar = ["tar", "-C", str(tree), "--sort=name", "-cf", "-", "."]
    parts = []
    with (
        subprocess.Popen(tar, stdout=subprocess.PIPE) as reader,
        subprocess.Popen(["xz", "-6", "-T0"], stdin=reader.stdout, stdout=subprocess.PIPE) as packer,
    ):
        if reader.stdout is not None:
            reader.stdout.close()  # xz has it: where xz ends early, tar is told
        while packer.stdout is not None and (content := packer.stdout.read(part_bytes)):
            parts.append(out / f"part.{len(parts):04}")
            parts[-1].write_bytes(content)
    if reader.returncode or packer.returncode:
        raise BundleError("tar or xz failed: is there space in the temporary folder?")
    return parts


def unpack_command(kind: str, out: Path) -> str:
    """What to run on the host, in the folder that holds the checkout and the parts."""
    unpacking = f"mkdir -p /tmp/llmperf && cat {out}/part.* | xz -dc -T0 | tar -C /tmp/llmperf -xf -\n"
    if kind in BESIDE:
        option = f"--llmperf-engine {BESIDE[kind]}=/tmp/llmperf/{RECIPES[kind].folder}"
        return f"{unpacking}# Add to the command of pytest: {option}"
    return (
        f"{unpacking}{RECIPES[kind].environment}export HF_HUB_OFFLINE=1 PYTHONPATH=/tmp/llmperf/plugin\n"
        f"python3 -m pytest -m h200 suites/ --llmperf-engine {kind}=/tmp/llmperf/engine"
    )


if __name__ == "__main__":
    sys.exit(main())
