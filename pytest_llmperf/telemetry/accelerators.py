"""The GPUs of this machine as a session uses them: free before a server starts, watched while it is measured."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

from pytest_llmperf.clock import Clock, seconds
from pytest_llmperf.errors import HardwareBusy
from pytest_llmperf.model.ranks import gpus_of, size_of
from pytest_llmperf.model.status import Note, Notify, Waiting
from pytest_llmperf.model.telemetry import GpuDevice, GpuTrace
from pytest_llmperf.telemetry.gpu_watch import JOIN_S, GpuWatch, name_of, user_of
from pytest_llmperf.telemetry.hardware import NVML_TIMEOUT_S, VARIABLE, Gpu, Hardware, call_with_timeout, visible_gpus
from pytest_llmperf.telemetry.nvml import Nvml, memory_in_use, occupants, pynvml

Answer = TypeVar("Answer")
#: From the time zero of a run, ns, to its trace; None if nothing was watched.
TraceOf = Callable[[int], GpuTrace | None]
POLL_S = 0.5
CONTEXT_BYTES = 2 << 30  # of a process of ours that stays: LMCache's server had up to 0.9 GiB beside its engine's cache


@dataclass(slots=True)
class Accelerators:
    """What a session knows of its GPUs.

    Args:
        hardware: what was found; emulated or none: nothing is watched.
        clock: stamps samples, and what waiting is measured by.
        notify: receives the status while the process waits, and each problem of the driver once.
        interval_s: between two samples.
        free_bytes: a GPU on which no more than this is in use is free, and who holds no more is no competitor.
        free_timeout_s: how long to wait until one is.
        nvml: the driver's library; None: nvidia-ml-py.
    """

    hardware: Hardware
    clock: Clock
    notify: Notify
    interval_s: float
    free_bytes: int
    free_timeout_s: float
    nvml: Nvml | None = None
    _noted: set[str] = field(default_factory=set)
    _hangs: str | None = None  # how the driver was last asked in vain: it is not asked again

    def of_server(
        self, flags: Mapping[str, object], env: Mapping[str, str], kind: str | None, count: int = 0, gpu_set: int = 0
    ) -> tuple[Gpu, ...]:
        """The GPUs that a server with these flags uses: the GPUs that the flags name, else the first visible GPUs.
        Several servers of one deployment use the GPUs that follow.

        A CUDA_VISIBLE_DEVICES in the server's environment replaces the session's variable, and may name GPUs that the
        session's variable hides.

        Args:
            flags, env: of the server, or what all servers of a deployment have in common.
            kind: hardware kind of the server.
            count: number of GPUs; 0: as many as the flags say.
            gpu_set: number of earlier sets of `count` GPUs, which other servers use.
        """
        count = count or gpus_of(flags)
        if kind == "cpu" or self.hardware.emulated or not self.hardware.gpus:
            return ()
        here = self.hardware.gpus
        machine = (*here, *self.hardware.hidden)
        shown = visible_gpus(machine, env) if VARIABLE in env else here
        if "device_ids" in flags:
            return _named(flags["device_ids"], shown, machine)[:count]
        first, step = size_of(flags, ("base_gpu_id",), 0), size_of(flags, ("gpu_id_step",))
        return shown[first::step][gpu_set * count :][:count]

    def in_use(self, gpus: tuple[Gpu, ...]) -> list[str]:
        """A sentence about each GPU on which a process holds memory; none about a GPU that the driver cannot ask."""
        return self._of_each(gpus, lambda nvml, gpu: _busy(nvml, gpu, self.free_bytes))

    @contextmanager
    def watched(self, gpus: tuple[Gpu, ...], ours: Callable[[], Collection[int]]) -> Iterator[TraceOf]:
        """Sample GPUs while the block runs.

        Gives what turns the time zero of the run, ns, into its trace once the block has ended; None: nothing to watch.
        """
        nvml = self.nvml or pynvml()
        if not gpus or nvml is None:
            yield lambda _origin_ns: None
            return
        if self._hangs is not None:
            devices = tuple(GpuDevice(gpu.index, gpu.name) for gpu in gpus)
            unwatched = GpuTrace(devices, problem=self._hangs)
            yield lambda _origin_ns: unwatched
            return
        watch = GpuWatch(nvml, gpus, ours, self.clock, self.interval_s, free_bytes=self.free_bytes)
        watch.start()
        try:
            yield lambda origin_ns: self._judged(watch.trace(origin_ns))
        finally:  # said here: a run that fails asks for no trace
            if (hangs := watch.stop(JOIN_S)) is not None:
                self._hung(hangs)

    def wait_free(self, gpus: tuple[Gpu, ...], stay: int = 0) -> None:
        """Wait until no process holds memory on these GPUs. The driver takes seconds to free the memory of a dead
        server.

        Args:
            stay: number of the session's own processes that stay on each GPU. Each may hold a CUDA context. Memory of a
                dead server that such a process still maps is not free.

        Raises:
            HardwareBusy: a process still holds memory after the timeout. The message names the process, if the driver
                shows process ids.
        """
        began_ns = self.clock.now_ns()
        allowed_bytes = self.free_bytes + stay * CONTEXT_BYTES
        while busy := self._of_each(gpus, lambda nvml, gpu: _busy(nvml, gpu, allowed_bytes)):
            now_ns = self.clock.now_ns()
            if now_ns - began_ns >= seconds(self.free_timeout_s):
                raise HardwareBusy(
                    f"{'; '.join(busy)}, after waiting {self.free_timeout_s:g} s. Runs beside a foreign process "
                    "would be invalid. Find that process with nvidia-smi and end it, choose other GPUs with "
                    "CUDA_VISIBLE_DEVICES, or raise gpu_free_limit_mib if the process is idle and must stay."
                    f"{_own_context_note(allowed_bytes) if stay else ''}"
                )
            self.notify(Waiting("; ".join(busy)))
            self.clock.sleep_ns(seconds(POLL_S))

    def held_bytes(self, gpus: tuple[Gpu, ...], pids: Collection[int], *, alone: bool) -> int | None:
        """Memory of a server on its fullest GPU; None if the driver does not report the memory of processes.

        Args:
            gpus: the GPUs of the server.
            pids: its processes.
            alone: whether no other process holds memory on these GPUs. If the driver hides process ids, all memory in
                use is then the server's.
        """
        own_pids = frozenset(pids)
        held = self._of_each(gpus, lambda nvml, gpu: _held_bytes(nvml, gpu, own_pids, alone=alone))
        return max(held, default=None)

    def _of_each(self, gpus: tuple[Gpu, ...], question: Callable[[Nvml, Gpu], Answer | None]) -> list[Answer]:
        """The answers of the driver about each GPU, without None; none from a driver that is missing, fails or hangs.
        The run's own trace says that such a driver could not be asked."""
        nvml = self.nvml or pynvml()
        if not gpus or nvml is None or self._hangs is not None:
            return []
        answers = call_with_timeout(lambda: _asked(nvml, gpus, question), NVML_TIMEOUT_S)
        if answers is None:
            self._hung(f"NVML did not answer within {NVML_TIMEOUT_S:g} s")
        return answers or []

    def _hung(self, why: str) -> None:
        self._hangs = why
        self._note_unwatched(why)

    def _judged(self, trace: GpuTrace) -> GpuTrace:
        if trace.problem is not None:
            self._note_unwatched(trace.problem)
        if trace.samples and all(sample.throttle_reasons is None for sample in trace.samples):
            self._note_once("the driver does not say whether the GPUs were throttled")
        if trace.samples and all(sample.energy_j is None and sample.power_w is None for sample in trace.samples):
            self._note_once("the driver reports neither energy nor power of the GPUs: energy per token is not seen")
        if trace.samples and trace.pids_visible is None:
            self._note_once("the driver lists no process on the GPUs, ours neither: another one there is not seen")
        if trace.pids_visible is False:
            self._note_once("the driver's process ids are not this container's: another process on a GPU shows only "
                            "before a server starts")
        return trace

    def _note_unwatched(self, why: str) -> None:
        self._note_once(f"the GPUs were not watched: {why}")

    def _note_once(self, line: str) -> None:
        if line not in self._noted:
            self._noted.add(line)
            self.notify(Note(line))


def _named(device_ids: object, shown: tuple[Gpu, ...], machine: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The GPUs of vLLM's --device-ids: an index counts the visible GPUs, a UUID names any GPU of the machine."""
    listed = device_ids if isinstance(device_ids, list) else str(device_ids).split(",")
    words = [str(word).strip() for word in listed]
    if all(word.isdigit() for word in words):
        return tuple(shown[int(word)] for word in words if int(word) < len(shown))
    return visible_gpus(machine, {VARIABLE: ",".join(words)})


def _own_context_note(allowed_bytes: int) -> str:
    """Note for a busy GPU: the session's own LMCache server may stay, and how to free memory if that server holds too
    much."""
    return (
        ' The session\'s own LMCache server stays because of keep=("l1",). Memory above '
        f"{allowed_bytes / 2**20:,.0f} MiB may belong to the last engine, which the LMCache server still maps. Raise "
        'gpu_free_timeout_s until the server releases it, or leave "l1" out of keep, which ends the server.'
    )


def _asked(
    nvml: Nvml, gpus: tuple[Gpu, ...], question: Callable[[Nvml, Gpu], Answer | None]
) -> list[Answer]:
    try:
        nvml.nvmlInit()
        return [answer for gpu in gpus if (answer := question(nvml, gpu)) is not None]
    except Exception:
        return []
    finally:
        with suppress(Exception):
            nvml.nvmlShutdown()


def _held_bytes(nvml: Nvml, gpu: Gpu, pids: frozenset[int], *, alone: bool) -> int | None:
    """Memory of these processes; None if the driver does not report the memory of each."""
    handle = nvml.nvmlDeviceGetHandleByIndex(gpu.index)
    own = [each.memory_bytes for each in occupants(nvml, handle) if each.pid in pids]
    sizes = own or ([memory_in_use(nvml, handle)] if alone else [])
    return sum(size for size in sizes if size is not None) if sizes and None not in sizes else None


def _busy(nvml: Nvml, gpu: Gpu, free_bytes: int) -> str | None:
    """A sentence about a GPU with more memory in use than `free_bytes`; None: less is in use, or the use is unknown."""
    handle = nvml.nvmlDeviceGetHandleByIndex(gpu.index)
    used = memory_in_use(nvml, handle)
    if used is None or used <= free_bytes:
        return None
    pids = sorted({occupant.pid for occupant in occupants(nvml, handle)})
    who = ", ".join(f"pid {pid} ({name_of(pid) or '?'} of {user_of(pid) or '?'})" for pid in pids)
    return f"GPU {gpu.index} has {used / 2**20:,.0f} MiB in use, by {who or 'a process that cannot be seen from here'}"
