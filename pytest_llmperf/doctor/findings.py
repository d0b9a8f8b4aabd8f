"""What the doctor finds: hardware, installed engines, models, room, and stored baselines."""

from __future__ import annotations

import os
import resource
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_llmperf.baseline.store import Store
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.adapters import check_configured, package_of, startable
from pytest_llmperf.engines.models.registry import SHAPES
from pytest_llmperf.engines.models.text_tokenizer import hub_folder
from pytest_llmperf.engines.process.environment import SHARED, Environment, Installations
from pytest_llmperf.engines.process.installed import version_in
from pytest_llmperf.errors import BaselineError, ConfigError, EnvironmentMissing
from pytest_llmperf.kinds import GPU_KINDS, OTHER_GPU
from pytest_llmperf.releases.stored import untested
from pytest_llmperf.results.baseline import StoredMeasurement
from pytest_llmperf.results.conditions import BUILD, kind_of
from pytest_llmperf.telemetry.hardware import Hardware

DEVICE = Path("/dev/nvidia0")
SHM = Path("/dev/shm")  # noqa: S108  (looked at, not written to)
HARDWARE = "hardware"
GIB = 1 << 30
LEAST_CORES = 2
LEAST_SHM_BYTES = 1 * GIB
LEAST_OPEN_FILES = 4096
LEAST_FREE_BYTES = 5 * GIB
HUB_PREFIX = "models--"
BASELINES = "baselines"


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact, or a problem with its remedy.

    Args:
        part: what it is about: "hardware", "engines", "models", "suites", "baselines".
        text: what was found.
        remedy: what to do about it; "" where it is no problem.
    """

    part: str
    text: str
    remedy: str = ""

    @property
    def problem(self) -> bool:
        return bool(self.remedy)


@dataclass(frozen=True, slots=True)
class Place:
    """Facts that the checks of `llmperf doctor` depend on. Tests pass their own values.

    Args:
        root: of the project.
        settings: of the project.
        hardware: what NVML says.
        has_device: whether the kernel shows an NVIDIA device, whatever NVML says.
        shm_bytes: size of shared memory; None if there is none.
        open_files: how many files a process may have open at most.
        free_bytes: of the disk that holds the run folders.
        hub: the hub's cache of downloaded models.
        version_in: returns the version of an engine in its environment; None if unknown.
    """

    root: Path
    settings: Settings
    hardware: Hardware
    has_device: bool
    shm_bytes: int | None
    open_files: int
    free_bytes: int
    hub: Path
    version_in: Callable[[Environment, str], str | None] = version_in


def this_place(root: Path, settings: Settings, hardware: Hardware) -> Place:
    """This machine."""
    return Place(
        root=root,
        settings=settings,
        hardware=hardware,
        has_device=DEVICE.exists(),
        shm_bytes=shutil.disk_usage(SHM).total if SHM.is_dir() else None,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        free_bytes=shutil.disk_usage(root).free,
        hub=hub_folder(os.environ),
    )


def machine(place: Place) -> Iterator[Finding]:
    """Findings about accelerators, and about operating system limits that are too low."""
    yield from _accelerators(place)
    yield from _limits(place)


def _accelerators(place: Place) -> Iterator[Finding]:
    hardware = place.hardware
    if not hardware.gpus:
        if place.has_device:
            yield Finding(HARDWARE, f"there is an NVIDIA device, and {hardware}",
                          "make `nvidia-smi` work first: driver, rights on /dev/nvidia*, the container's GPU option")
        else:
            yield Finding(HARDWARE, f"{hardware}: runs what is marked cpu (-m cpu), and everything with --emulate KIND")
        return
    for gpu in hardware.gpus:
        memory = "" if gpu.memory_bytes is None else f", {gpu.memory_bytes / GIB:.0f} GiB"
        yield Finding(HARDWARE, f"GPU {gpu.index}: {gpu.name}{memory}, kind {gpu.kind or OTHER_GPU}")
    cuda = "" if hardware.cuda is None else f", CUDA {hardware.cuda}"
    yield Finding(HARDWARE, f"driver {hardware.driver}{cuda}")
    kinds = {gpu.kind or OTHER_GPU for gpu in hardware.gpus}
    if len(kinds) > 1:
        yield Finding(HARDWARE, f"GPUs of several kinds: {', '.join(sorted(kinds))}; tests run as {hardware.kind}",
                      "show one kind only, with CUDA_VISIBLE_DEVICES")
    if hardware.kind == OTHER_GPU:
        yield Finding(HARDWARE, f"no marker stands for {hardware.gpus[0].name}",
                      f"run unmarked tests, or on one of {', '.join(GPU_KINDS)}; "
                      f"its baselines lie under {stored_kind(hardware)}")


def _limits(place: Place) -> Iterator[Finding]:
    if (cpu := place.hardware.cpu) is not None:
        yield Finding(HARDWARE, f"{cpu.cores} CPU cores of {cpu.model}",
                      "" if cpu.cores >= LEAST_CORES else "give it another: the load generator needs one for itself")
    if place.shm_bytes is None or place.shm_bytes < LEAST_SHM_BYTES:
        size = "no shared memory" if place.shm_bytes is None else f"{place.shm_bytes / GIB:.2g} GiB of shared memory"
        yield Finding(HARDWARE, f"{size}: too little for several GPUs",
                      "docker run --shm-size=8g, or --ipc=host; in a pod an emptyDir with `medium: Memory` at /dev/shm")
    if place.open_files < LEAST_OPEN_FILES:
        yield Finding(HARDWARE, f"at most {place.open_files} open files: each stream is one",
                      "raise it: ulimit -Hn 65536")
    if place.free_bytes < LEAST_FREE_BYTES:
        yield Finding(HARDWARE, f"{place.free_bytes / GIB:.1f} GiB of disk left for logs and run folders",
                      f"make room, or write them elsewhere: --llmperf-runs=DIR (now {place.settings.runs_dir})")


def engines(place: Place, versions: dict[str, str]) -> Iterator[Finding]:
    """Every engine that we can start and that has an environment of its own, and every named installation.

    Args:
        versions: takes the version of each that was found.
    """
    try:
        check_configured(place.settings.engines)
    except ConfigError as error:
        yield Finding("engines", str(error), "correct [tool.llmperf.engines] in pyproject.toml or llmperf.toml")
    missing = []
    suffix = f"@{place.hardware.kind}"
    configured = {name.removesuffix(suffix) for name in place.settings.engines if "@" not in name.removesuffix(suffix)}
    own_names = sorted(name for name in configured if name.partition(":")[0] in startable() and ":" in name)
    for name in (*(engine for engine in startable() if engine not in SHARED), *own_names):
        engine = name.partition(":")[0]
        try:
            environment = environment_at(place, name)
        except EnvironmentMissing as error:
            missing.append((name, str(error)))
            continue
        version = place.version_in(environment, engine)
        if version is None:
            yield Finding("engines", f"{name} at {environment.origin}, version unknown",
                          f"see whether it is whole: {' '.join(environment.prefix)} must have {engine}'s metadata")
        else:
            versions[name] = version
            note = untested(engine, version)
            yield Finding("engines", f"{name} {version} at {environment.origin}{note and f' ({note})'}")
    for name, why in missing:
        fact, _, remedy = why.partition(". ")
        measures_gpu = place.hardware.kind != "cpu"  # without a GPU, --emulate needs no engine
        needed = name in configured or (measures_gpu and not versions)
        yield Finding("engines", fact, remedy if needed else "")
    if not versions:
        yield Finding("engines", "no engine can start here: only --emulate KIND and endpoint(URL, …) can be measured")


def environment_at(place: Place, name: str) -> Environment:
    """The environment of an engine or of a named installation, such as "vllm" or "vllm:old".

    Raises:
        EnvironmentMissing: the engine is not installed.
    """
    installations = Installations(place.settings.engines, place.root, place.hardware.kind)
    return installations.find_environment(name, package_of(name.partition(":")[0]))


def models(place: Place) -> Iterator[Finding]:
    """Shapes of the registry, which are built here, and what the hub's cache holds."""
    yield Finding("models", f"shapes, built when first used: {', '.join(SHAPES)}")
    names = [path.name for path in place.hub.iterdir() if path.is_dir()] if place.hub.is_dir() else []
    model_names = sorted(
        name.removeprefix(HUB_PREFIX).replace("--", "/") for name in names if name.startswith(HUB_PREFIX)
    )
    yield Finding("models", f"downloaded: {', '.join(model_names) or 'none'} ({place.hub})")


def baselines(place: Place, versions: Mapping[str, str]) -> Iterator[Finding]:
    """How many there are for this kind, and what sets them apart from this machine.

    Args:
        versions: of the engines that are installed.
    """
    kind = stored_kind(place.hardware)
    try:
        stored_baselines = Store(place.root / place.settings.baselines_dir).read_all(kind)
    except BaselineError as error:
        yield Finding(BASELINES, str(error), "correct or remove that file; git has what it was")
        return
    stored = [measurement for baseline in stored_baselines.values() for measurement in baseline.measurements.values()]
    if not stored:
        remedy = "create them: pytest suites --update-baselines-new"
        yield Finding(BASELINES, f"none for {kind} in {place.settings.baselines_dir}/: comparisons will be NO_BASELINE",
                      "" if kind == "cpu" else remedy)  # a machine without a GPU may only emulate
        return
    rules = place.settings
    yield from _unknown_names(stored, "compare_across", rules.compare_across)
    yield from _unknown_names(stored, "same_build", rules.same_build)
    changes = [dict(_changes(baseline, place, versions)) for baseline in stored]
    matching = sum(not change for change in changes)
    yield Finding(BASELINES, f"{matching} of {len(stored)} measurements for {kind} match this machine")
    counts = Counter(item for change in changes for item in change.items())
    for (field, text), count in counts.items():
        if field in BUILD and field not in rules.same_build:
            yield Finding(BASELINES, f"{count} with {text}: another build, which comparisons name")
        else:
            yield Finding(BASELINES, f"{count} with {text}: INCOMPARABLE",
                          'compare on the stored one, or start anew: --update-baselines --llmperf-accept "REASON"')


def _unknown_names(stored: Sequence[StoredMeasurement], setting: str, names: Sequence[str]) -> Iterator[Finding]:
    """Names in a setting that no baseline has; a note and no problem, as baselines of another kind may have them."""
    recorded = {field for baseline in stored for field in baseline.fingerprint}
    if unknown := [name for name in names if name not in recorded]:
        yield Finding(BASELINES, f"{setting} names {', '.join(unknown)}, which no baseline has. Recorded fields are "
                            f"{', '.join(sorted(recorded))}")


def stored_kind(hardware: Hardware) -> str:
    """Which folder holds the baselines of a machine."""
    return kind_of({"hardware": hardware.kind, "gpu": hardware.gpus[0].name if hardware.gpus else "none"})


def _changes(
    stored: StoredMeasurement, place: Place, versions: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Fields whose stored value is not the value here, each with both values as text."""
    hardware, stored_conditions = place.hardware, stored.fingerprint
    engine = stored_conditions.get("engine", "")
    now = {"engine.version": versions.get(engine)}
    if hardware.gpus:
        now |= {"gpu": hardware.gpus[0].name, "driver": hardware.driver, "cuda": hardware.cuda}
    elif hardware.cpu is not None:
        now |= {"cpu": hardware.cpu.model, "cpu_cores": str(hardware.cpu.cores)}
    for field, value in now.items():
        both_recorded = None not in (value, stored_conditions.get(field))
        if both_recorded and value != stored_conditions[field] and field not in place.settings.compare_across:
            name = f"{engine} version" if field == "engine.version" else field
            yield field, f"{name} {stored_conditions[field]} (here {value})"


def examine(place: Place) -> Iterator[Finding]:
    """Everything but the suites, which only pytest knows."""
    yield from machine(place)
    versions: dict[str, str] = {}
    yield from engines(place, versions)
    yield from models(place)
    yield from baselines(place, versions)
