"""A program that prints how fast the first visible GPU launches kernels and copies to the host, as JSON.

The program calls the driver's library, so it needs neither CUDA nor PyTorch. At its end the GPU's memory is free again.
"""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

LIBRARY = "libcuda.so.1"
LAUNCHES = 500
REPEATS = 9
ROUND_TRIPS = 200
COPIED_BYTES = 64 * 2**20
KERNEL = b"nothing"
PTX = b".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry nothing()\n{\n    ret;\n}\n"


class Driver:
    """Calls of the CUDA driver, each of which must succeed."""

    def __init__(self, library: Any) -> None:  # noqa: ANN401 - a shared library, or what stands for one
        self._library = library

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the library.

        Raises:
            OSError: the function does not exist or fails.
        """
        function = getattr(self._library, name, None)
        code = -1 if function is None else function(*arguments)
        if code != 0:
            raise OSError(f"{name}: error {code}")

    def use_first_gpu(self) -> None:
        """Make the primary context of the first GPU current.

        Raises:
            OSError: there is no such GPU.
        """
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)


def launches(driver: Driver) -> dict[str, float]:
    """Microseconds per launch of an empty kernel in a row of launches, and for one launch with its end."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(PTX))
    driver.call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(KERNEL))

    def launch(count: int) -> None:
        for _ in range(count):
            driver.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
        driver.call("cuCtxSynchronize")

    launch(LAUNCHES)
    row_s = median_s(lambda: launch(LAUNCHES), REPEATS)
    single_s = median_s(lambda: launch(1), ROUND_TRIPS)
    return {"kernel_launch_us": row_s / LAUNCHES * 1e6, "kernel_round_trip_us": single_s * 1e6}


def copies(driver: Driver) -> dict[str, float]:
    """Gigabytes per second from the GPU to pinned memory of the host."""
    on_gpu, on_host = ctypes.c_uint64(), ctypes.c_void_p()
    size = ctypes.c_size_t(COPIED_BYTES)
    driver.call("cuMemAlloc_v2", ctypes.byref(on_gpu), size)
    driver.call("cuMemHostAlloc", ctypes.byref(on_host), size, 0)
    copy_s = median_s(lambda: driver.call("cuMemcpyDtoH_v2", on_host, on_gpu, size), REPEATS)
    return {"to_host_gb_per_s": COPIED_BYTES / copy_s / 1e9}


def main() -> None:
    """Print what was measured; what failed is missing, with the reason under "not_seen"."""
    values: dict[str, object] = {}
    try:
        driver = Driver(ctypes.CDLL(LIBRARY))
        driver.use_first_gpu()
    except OSError as error:
        values["not_seen"] = str(error)
    else:
        for part in (launches, copies):
            try:
                values |= part(driver)
            except OSError as error:
                values["not_seen"] = str(error)
    print(json.dumps(values))  # noqa: T201


def median_s(work: Callable[[], object], repeats: int) -> float:
    """Median duration of a piece of work, in seconds."""
    durations_s = []
    for _ in range(repeats):
        begun_s = time.perf_counter()
        work()
        durations_s.append(time.perf_counter() - begun_s)
    return median(durations_s)


if __name__ == "__main__":
    main()
