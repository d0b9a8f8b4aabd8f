"""Hardware markers: what may run here, what was asked for, and why something is skipped."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from dataclasses import is_dataclass
from types import SimpleNamespace

import pytest

from pytest_llmperf.errors import SpecError, did_you_mean
from pytest_llmperf.kinds import GPU_KINDS, kind_names, like_a_gpu
from pytest_llmperf.plugin.endings import conclude_setup
from pytest_llmperf.plugin.excuses import EXCUSES, RUNS_HERE
from pytest_llmperf.plugin.identity import spec_unless_it_raises
from pytest_llmperf.plugin.state import STATE
from pytest_llmperf.plugin.verdicts import forget_execution, leave_without_traceback, uses_llmperf
from pytest_llmperf.telemetry.hardware import Hardware

CANNOT_RUN = "llmperf.cannot_run"  # of a test that is skipped because of its hardware: the kind that it needs


def by_kind(**rows: object) -> pytest.MarkDecorator:
    """One test, one row of model, load and limits per hardware kind; the test's `case` argument is its row.

    Each row becomes an item of its own with that kind's marker: `test_x[h200]` is what `-m h200` selects.

    Args:
        rows: hardware kind → the test's `case`: an instance of a dataclass, `by_kind(l4=Case(rate=1), h200=Case())`, or
            a dict of what `case` has, `h200={"model": "llama-3.1-8b", "rate": 8}`, beside `case.kind`.

    Raises:
        SpecError: a key is no hardware kind, or what it stands for is no row.
    """
    unknown = sorted(set(rows) - set(kind_names()))
    if unknown or not rows:
        wrong = ", ".join(unknown) or "no row"
        raise SpecError(f"by_kind({', '.join(rows)}): {wrong} is no hardware kind. Write a known one: "
                        f"{', '.join(kind_names())}.")
    return pytest.mark.parametrize("case", [
        pytest.param(_case(kind, row), id=kind, marks=getattr(pytest.mark, kind)) for kind, row in rows.items()
    ])


def _case(kind: str, row: object) -> object:
    if is_dataclass(row) and not isinstance(row, type):
        return row
    if isinstance(row, Mapping) and all(isinstance(name, str) and name != "kind" for name in row):
        return SimpleNamespace(kind=kind, **row)
    raise SpecError(f'by_kind({kind}={row!r}): write the values of `case`, without `kind`, as a dict, '
                    f'{kind}={{"rate": 8}}, or as an instance of a dataclass, {kind}=Case(rate=8).')


def requested_kinds(expression: str) -> set[str]:
    """Hardware kinds that a `-m` expression requests: the expression is false without kinds and true with only this
    kind.

    Every other marker name is tried both as present and as absent, so that `h200 and slow` asks for h200.
    """
    if not expression:
        return set()
    # No public API evaluates -m; this one has kept its shape since pytest 5.4.
    from _pytest.mark.expression import Expression

    try:
        parsed = Expression.compile(expression)
    except SyntaxError:  # pytest itself reports the error later
        return set()

    kinds = kind_names()

    def holds(kind: str | None, others: bool) -> bool:
        return parsed.evaluate(lambda name, /, **_: name == kind if name in kinds else others)

    return {k for k in kinds for others in (False, True) if not holds(None, others) and holds(k, others)}


def missing_hardware(config: pytest.Config) -> str | None:
    """The error if `-m` asks for hardware that this machine lacks; None if the machine has the hardware."""
    if config.option.collectonly or config.option.help:
        return None
    requested = requested_kinds(config.getoption("-m", default="") or "")
    if not requested or "cpu" in requested:
        return None
    hardware = config.stash[STATE].hardware
    if hardware.kind in requested:
        return None
    wanted = " or ".join(sorted(requested))
    here = "--emulate gives" if hardware.emulated else "this machine has"
    return (
        f"-m asks for {wanted}, and {here} {hardware}. Run it on a machine with {wanted}, emulate one: --emulate "
        f"{min(requested)}, name an endpoint of this kind in the engine marker: endpoint(…, kind={min(requested)!r}), "
        "look at what it would run with --collect-only, or drop -m to run what can run."
    )


def refuse_unknown_gpu(item: pytest.Item) -> None:
    """Refuse a performance test whose marker names a GPU: the test would run on every hardware.

    Raises:
        SpecError: no kind describes this GPU, and nobody registered the marker with pytest.
    """
    names = {marker.name for marker in item.iter_markers()} - set(kind_names()) if uses_llmperf(item) else set()
    if gpus := _unknown_gpus(names, item.config):
        raise SpecError(_unknown_gpu_error(gpus[0], f"@pytest.mark.{gpus[0]}"))


def _unknown_gpus(names: set[str], config: pytest.Config) -> list[str]:
    """Names that look like a GPU, and that are neither a kind's nor a registered marker's."""
    return sorted(filter(like_a_gpu, names - _registered_markers(config))) if names else []


def _registered_markers(config: pytest.Config) -> set[str]:
    return {re.split(r"[:(]", line, maxsplit=1)[0].strip() for line in config.getini("markers")}


def _unknown_gpu_error(name: str, place: str) -> str:
    meant = did_you_mean(name, GPU_KINDS, " Did you mean {}?")
    return (f"{place}: {name} is no hardware kind.{meant} Known: {', '.join(kind_names())}. Define the kind in "
            f"pyproject.toml, [tool.llmperf.kinds.{name}], or, if the marker has another meaning, register it with "
            f'pytest: markers = ["{name}: …"].')


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test of an endpoint with the declared kind, so that `-m h200` selects the test."""
    if uses_llmperf(item):
        item.config.stash[STATE].performance_tests = True
    kind = declared_kind(item)
    if kind is not None and not kinds_of(item):
        item.add_marker(getattr(pytest.mark, kind))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Usage error where `-m` asks for hardware that neither this machine nor a declared endpoint has.

    Under xdist only workers collect. Their tests are skipped, and `NothingMeasured` ends the session with this error.
    """
    if (gpus := _unknown_gpus_asked_for(session)):
        raise pytest.UsageError(_unknown_gpu_error(gpus[0], f"-m {session.config.option.markexpr!r}"))
    problem = missing_hardware(session.config)
    if problem is None or hasattr(session.config, "workerinput"):
        return
    if not any(declared_kind(item) is not None and kind_of(item) for item in session.items):
        raise pytest.UsageError(problem)


def _unknown_gpus_asked_for(session: pytest.Session) -> list[str]:
    """Names in `-m` of GPUs that no kind describes and no marker registers, where performance tests were collected."""
    expression = session.config.getoption("-m", default="") or ""
    names = set(re.findall(r"[A-Za-z_]\w*", expression)) - set(kind_names())
    return _unknown_gpus(names, session.config) if session.config.stash[STATE].performance_tests else []


def declared_kind(item: pytest.Item) -> str | None:
    """The hardware kind that the endpoint of the item's engine marker declares; None without such an endpoint."""
    spec = spec_unless_it_raises(item)
    return None if spec is None else spec.kind


def kinds_of(item: pytest.Item) -> list[str]:
    """Hardware kinds that an item is marked with."""
    return [kind for kind in kind_names() if item.get_closest_marker(kind)]


def running_kind(kinds: list[str], hardware: Hardware, requested: set[str]) -> str | None:
    """The kind that an item with these markers runs as here; None if it cannot."""
    if not kinds:
        return hardware.kind
    if hardware.kind in kinds:
        return hardware.kind
    real_cpu = "cpu" in kinds and "cpu" in requested and not hardware.emulated
    return "cpu" if real_cpu else None


def kind_of(item: pytest.Item) -> str | None:
    """The kind that this item runs as on this machine, or at its endpoint; None if it cannot."""
    if (declared := declared_kind(item)) in kinds_of(item):
        return declared
    requested = requested_kinds(item.config.getoption("-m", default="") or "")
    return running_kind(kinds_of(item), item.config.stash[STATE].hardware, requested)


@pytest.hookimpl(wrapper=True, trylast=True)  # within pytest's own wrappers
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """An execution of its own. What a fixture of the test's own measures may fail as it may in the test."""
    forget_execution(item)
    with leave_without_traceback(item):
        refuse_unknown_gpu(item)
        if uses_llmperf(item):
            item.config.stash[EXCUSES].check(item)
    skip_what_is_not_emulated(item)
    try:
        skip_what_cannot_run_here(item)
    except pytest.skip.Exception:
        kind, needed = next(iter(kinds_of(item)), "h200"), _gpus_of(item)
        item.user_properties.append((CANNOT_RUN, f"{needed} × {kind}" if needed > 1 else kind))
        raise
    item.stash[RUNS_HERE] = True
    with leave_without_traceback(item):
        try:
            return (yield)
        except BaseException as ending:
            conclude_setup(item, ending)
            raise


def skip_what_cannot_run_here(item: pytest.Item) -> None:
    """Skip an item whose markers request hardware that this machine lacks, and name the reason."""
    kinds, needed = kinds_of(item), _gpus_of(item)
    if not kinds and not needed:
        return
    kind = kind_of(item)
    hardware = item.config.stash[STATE].hardware
    if kind is None:
        pytest.skip(f"needs {' or '.join(kinds)}; {way_out(kinds, hardware)}")
    on_cpu = kind == "cpu" and "cpu" in kinds
    if needed > len(hardware.gpus) and not on_cpu and declared_kind(item) is None:
        remedy = ": run it without -n, or with fewer workers" if hardware.shared_by > 1 else ""
        pytest.skip(f"needs {needed} GPUs; {_machine_text(hardware)}{remedy}")


def skip_what_is_not_emulated(item: pytest.Item) -> None:
    """Skip an item whose marker says why the emulator cannot answer it."""
    marker = item.get_closest_marker("not_emulated")
    if marker is None:
        return
    if len(marker.args) != 1 or marker.kwargs or not isinstance(marker.args[0], str):
        pytest.fail(f"{item.nodeid}: write the reason as @pytest.mark.not_emulated('an emulated GPU draws no power').",
                    pytrace=False)
    if item.config.stash[STATE].hardware.emulated:
        pytest.skip(marker.args[0])


def way_out(kinds: list[str], hardware: Hardware) -> str:
    """What this machine has, and how a test that needs one of these kinds runs all the same."""
    return f"{_machine_text(hardware)}: {_remedy(kinds, hardware)}"


def _remedy(kinds: list[str], hardware: Hardware) -> str:
    if "cpu" in kinds:
        return "drop --emulate and ask for it with -m cpu" if hardware.emulated else "ask for it with -m cpu"
    machine = f"run it on a machine with {' or '.join(kinds)}"
    emulate = f"--emulate {kinds[0].rpartition(' ')[2]}"
    return f"emulate it with {emulate}" if hardware.emulated else f"{machine}, or {emulate}"


def _machine_text(hardware: Hardware) -> str:
    if hardware.shared_by > 1:
        return f"this worker of {hardware.shared_by} has {hardware}"
    return f"this run has {hardware}" if hardware.emulated else f"this machine has {hardware}"


def _gpus_of(item: pytest.Item) -> int:
    """The GPUs that the `gpus` marker asks for, or that the replicas of the `engine` marker's deployment need."""
    marker = item.get_closest_marker("gpus")
    if marker is None:
        spec = spec_unless_it_raises(item)
        return 0 if spec is None or spec.servers == 1 else spec.gpus
    if len(marker.args) != 1 or marker.kwargs or not isinstance(marker.args[0], int):
        pytest.fail(f"{item.nodeid}: write the number of GPUs as @pytest.mark.gpus(2).", pytrace=False)
    return int(marker.args[0])
