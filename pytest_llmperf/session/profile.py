"""Traces of measured workloads: an extra run on a server that is started for the trace and ends with it.

The flags of the profiler, and the memory that it holds, stay out of every measured server. So a trace costs one server
start and one warm-up, and no measured run is a traced run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.adapters import adapter_of
from pytest_llmperf.engines.server import Server
from pytest_llmperf.errors import EngineError, InfrastructureError
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.status import WarmingUp
from pytest_llmperf.process.background_thread import in_background
from pytest_llmperf.process.scratch import Scratch
from pytest_llmperf.results.profile import FOLDER, UNFINISHED, Profile
from pytest_llmperf.results.writer import file_name
from pytest_llmperf.session.arguments import spec_of
from pytest_llmperf.session.executions import Execution
from pytest_llmperf.session.series import Series
from pytest_llmperf.session.warm_up import warm_up
from pytest_llmperf.telemetry.torch_trace import breakdown

COMMAND_TIMEOUT_S = 120.0  # the end of a capture writes its report
SUFFIX = ".nsys-rep"
HOST_FOLDER = "host-linux-x64"
RAW = ".qdstrm"  # what nsys writes without its importer, with exit code 0


@dataclass(frozen=True, slots=True)
class NsightSystems:
    """An installed `nsys` and the name of one session.

    Args:
        program: path of `nsys`.
        session: name of the session, unique on this machine.
    """

    program: str
    session: str

    @property
    def launch_words(self) -> tuple[str, ...]:
        """Words before the command of a server. Nothing is recorded until `start`."""
        return (self.program, "launch", f"--session-new={self.session}", "--trace=cuda,nvtx,osrt", "--wait=all")

    def start(self, file: Path) -> None:
        """Begin a capture into a new file, whose name ends in `.nsys-rep`.

        Raises:
            EngineError: nsys failed.
        """
        self._run("start", f"--session={self.session}", f"--output={file.with_suffix('')}", "--sample=none",
                  "--cpuctxsw=none", "--force-overwrite=true")

    def stop(self, file: Path) -> None:
        """End the capture. The file is complete when this returns.

        Args:
            file: of `start`.

        Raises:
            EngineError: nsys failed, or wrote no report.
        """
        output = self._run("stop", f"--session={self.session}")
        if file.is_file():
            return
        if file.with_suffix(RAW).is_file():
            raise EngineError(f"nsys wrote {file.stem}{RAW} and no report, because its importer is missing. Install "
                              f"the folder {HOST_FOLDER} of Nsight Systems beside the folder of {self.program}.")
        raise EngineError(f"nsys stop wrote no {file.name}: {output[:300]}. Install another version of Nsight Systems, "
                          "or take nsys off the PATH.")

    def _run(self, verb: str, *options: str) -> str:
        """What nsys printed, in one line."""
        try:
            ended = subprocess.run([self.program, verb, *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, timeout=COMMAND_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EngineError(f"nsys {verb} failed: {error}.") from error
        text = " ".join(ended.stdout.decode(errors="replace").split())
        if ended.returncode:
            raise EngineError(f"nsys {verb} ended with exit code {ended.returncode}: {text[:300]}. Run "
                              "`nsys status -e`, which names what the machine lacks, or take nsys off the PATH.")
        return text


def installed_nsys() -> NsightSystems | None:
    """The `nsys` on PATH with a session of its own; None if there is none."""
    program = shutil.which("nsys")
    return None if program is None else NsightSystems(program, f"llmperf-{os.urandom(6).hex()}")


STEPS = 64  # engine steps of a trace
TRACES = "*.trace.json.gz"
CAPTURE_S = 5.0  # longest capture of Nsight Systems
BEFORE_TRACE = 1 / 3  # of the run: by then the batch is full, and enough of the run is left
RANK = re.compile(r"(?:rank|TP-)(\d+)")
FRONT_END = "async_llm"


def profile_measurements(execution: Execution) -> Iterator[Profile]:
    """Trace every measurement of a test that has no trace yet; of a search only the workload at its first rate.

    A trace that fails becomes a profile with a problem.
    """
    for number, series in enumerate(execution.measured_series, start=1):
        measured = series.finished
        if not measured.runs or measured.tried or execution.profile_of(number) is not None:
            continue
        try:
            profile = profile_series(series, number, execution.session.worker)
        except InfrastructureError as error:
            profile = Profile(number, str(spec_of(series.engine)), problem=str(error).partition("\n")[0])
        execution.profiles.append(profile)
        yield profile


def profile_series(series: Series, number: int, worker: str = "") -> Profile:
    """Repeat the first run of a series on a new server, and keep the trace of some steps.

    Args:
        series: has at least one run.
        number: of its measurement in the test, from 1.
        worker: of xdist.

    Raises:
        EngineError: the engine has no profiler, the server does not start, or the trace cannot be read.
        LoadError: the load generator failed.
        InfrastructureError: the run folder cannot be written.
    """
    session, spec = series.session, spec_of(series.engine)
    settings = session.settings
    place = session.run_dir / FOLDER
    try:
        place.mkdir(parents=True, exist_ok=True)
        scratch = Scratch(place, UNFINISHED)
    except OSError as error:
        raise InfrastructureError(f"The trace cannot be written: {error}. Free space there, or name another folder "
                                  "with --llmperf-runs=DIR.") from error
    try:
        traces = _traced(series, spec, scratch.path)
        ranks = tuple(part for part in map(breakdown, traces) if part is not None)
        if not ranks:
            raise EngineError(f"The trace of {spec} has no kernel and no operator: no step ran while it was recorded. "
                              "Send more requests, or longer answers.")
        stem = f"{Path(file_name(series.execution.test, worker)).stem}.{number}"
        problem, files = _excess("the trace", traces, settings), list[Path]()
        if not problem:
            files = [trace.replace(place / f"{stem}.rank{rank}{TRACES[1:]}") for rank, trace in enumerate(traces)]
        profile = Profile(number, str(spec), tuple(str(file.relative_to(session.run_dir)) for file in files), ranks,
                          problem)
        return _with_capture(profile, series, spec, scratch.path / f"{stem}{SUFFIX}")
    except OSError as error:
        raise InfrastructureError(f"The trace cannot be stored: {error}. Free space there, or name another folder with "
                                  "--llmperf-runs=DIR.") from error
    finally:
        scratch.remove()
        with suppress(OSError):  # it holds other traces
            place.rmdir()


def _excess(name: str, files: Sequence[Path], settings: Settings) -> str:
    """Why the files are dropped; "" for files within the size limit."""
    size_bytes = sum(file.stat().st_size for file in files)
    if size_bytes <= settings.profile_limit_mib * 2**20:
        return ""
    return (f"{name} was dropped: it has {size_bytes / 2**20:.1f} MiB, and profile_limit_mib is "
            f"{settings.profile_limit_mib:g}")


def _with_capture(profile: Profile, series: Series, spec: EngineSpec, file: Path) -> Profile:
    """The profile with a capture of Nsight Systems, if `nsys` is on PATH.

    The capture has a server of its own, because two profilers cannot read one GPU. A failed capture is a problem of the
    profile.
    """
    if (nsys := installed_nsys()) is None:
        return profile
    session = series.session
    try:
        capture_run(series, spec, nsys, file)
        problem = _excess("the capture of nsys", [file], session.settings)
        if not problem:
            kept = file.replace(session.run_dir / FOLDER / file.name)
            return replace(profile, nsys=str(kept.relative_to(session.run_dir)))
    except (InfrastructureError, OSError) as error:
        problem = f"no capture of nsys: {str(error).partition(chr(10))[0]}"
    return replace(profile, problem="; ".join(filter(None, (profile.problem, problem))))


def capture_run(series: Series, spec: EngineSpec, nsys: NsightSystems, file: Path) -> None:
    """Send the first run again to a new server under `nsys`, and capture a part of it into the file.

    Raises:
        EngineError: the server does not start under nsys, or nsys fails.
        LoadError: the load generator failed.
    """
    def capture(_server: Server, done: threading.Event) -> None:
        nsys.start(file)
        done.wait(CAPTURE_S)
        nsys.stop(file)

    _record_run(series, spec, capture, under=nsys.launch_words)


def _record_run(
    series: Series, spec: EngineSpec, record: Callable[[Server, threading.Event], None],
    prepare: Callable[[Server], None] = lambda _server: None, under: tuple[str, ...] = (),
) -> None:
    """Repeat the first run of a series on a new server, which is stopped afterwards, and record a part of the run.

    Args:
        series: has at least one run.
        spec: what to start.
        record: called after a part of the run; its event tells the end of the run.
        prepare: called with the warm server before the run.
        under: words of the command that starts the server, see `EnginePool.launching_under`.

    Raises:
        EngineError: the server does not start, the recording failed, or the run ended before its recording began.
    """
    session, first_run = series.session, series.finished.runs[0]
    after_s = (first_run.metrics.value("duration_s") or 0.0) * BEFORE_TRACE
    begun, problems = threading.Event(), list[EngineError]()

    def work(done: threading.Event) -> None:
        if done.wait(after_s):
            return
        begun.set()
        try:
            record(server, done)
        except EngineError as error:
            problems.append(error)

    try:
        with session.pool.launching_under(under) if under else nullcontext():
            server = session.pool.acquire(spec, fresh=True)
        session.notify(WarmingUp(str(server.spec)))
        replayer = session.replayer
        warm_up(server, series.workload, replayer)
        prepare(server)
        with in_background(work, "llmperf-trace"):
            replayer.run(server, series.workload, first_run.seed)
    finally:
        session.pool.release()
    if problems:
        raise problems[0]
    if not begun.is_set():
        raise EngineError(f"The recorded run of {spec} ended within {after_s:.1f} s, before its recording began. Send "
                          "more requests.")


def _traced(series: Series, spec: EngineSpec, folder: Path) -> list[Path]:
    """Traces by rank of one run on a new server, which is stopped afterwards."""
    empty_traces = set[Path]()
    flags = None if spec.is_endpoint else adapter_of(spec.engine).profiler_flags(folder, STEPS)
    if flags is None:
        why = "this session did not start the server" if spec.is_endpoint else f"no profiler of {spec.engine} is known"
        raise EngineError(f"{spec} cannot be traced: {why}.")

    def prepare(server: Server) -> None:
        server.control.start_profiler(folder, STEPS)  # the first start may take seconds
        server.control.stop_profiler()
        empty_traces.update(folder.rglob(TRACES))

    def trace(server: Server, done: threading.Event) -> None:
        server.control.start_profiler(folder, STEPS)
        done.wait()
        server.control.stop_profiler()

    _record_run(series, spec.with_flags(**flags), trace, prepare)
    traces = [path for path in folder.rglob(TRACES) if path not in empty_traces and FRONT_END not in path.name]
    if not traces:
        raise EngineError(f"{spec} wrote no trace.")
    return sorted(traces, key=_rank)


def _rank(trace: Path) -> tuple[int, str]:
    match = RANK.search(trace.name)
    return (0 if match is None else int(match[1])), trace.name
