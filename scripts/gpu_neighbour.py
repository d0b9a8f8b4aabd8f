#!/usr/bin/env python3
"""A bad neighbour, for trying out on a GPU host that contention is noticed: PyTorch that keeps a GPU's SMs busy.

    python scripts/gpu_neighbour.py --seconds 60 --memory-gib 2 &
    pytest -m h200 suites/test_serving.py

Started before the server, the test ends with HardwareBusy; started while it measures (`--after 90`), with an ERROR that
names this process. It ends by itself after `--seconds`, or at once when its standard input closes under `--until-eof`.
It needs PyTorch with CUDA, as vLLM's environment has it.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections.abc import Callable, Sequence

MOST_S = 3600.0
GIB = 2**30


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; argparse ends the process where they make no sense."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long, at most 3600 (default: %(default)s)")
    parser.add_argument("--after", type=float, default=0.0, metavar="SECONDS", help="wait before it touches the GPU")
    parser.add_argument("--device", type=int, default=0, help="CUDA's index of the GPU (default: %(default)s)")
    parser.add_argument("--memory-gib", type=float, default=1.0, help="memory that it holds (default: %(default)s)")
    parser.add_argument("--duty", type=float, default=1.0,
                        help="share of the time in which it computes, 0 to 1; 0: it only holds memory (default: 1)")
    parser.add_argument("--size", type=int, default=8192, help="of the square matrices (default: %(default)s)")
    parser.add_argument("--until-eof", action="store_true", help="end when standard input closes, too")
    options = parser.parse_args(arguments)
    for name, low, high in (("seconds", 0.1, MOST_S), ("after", 0, MOST_S), ("duty", 0, 1), ("memory_gib", 0, 1000),
                            ("size", 64, 65536), ("device", 0, 1000)):
        value = getattr(options, name)
        if not low <= value <= high:
            parser.error(f"--{name.replace('_', '-')} {value:g}: between {low:g} and {high:g}")
    return options


def keep_busy(options: argparse.Namespace, step: Callable[[], None], now_s: Callable[[], float],
              rest: Callable[[float], None], ended: Callable[[], bool]) -> int:
    """Compute for the share `duty` of the time until it is up or `ended` says so; how many steps that were.

    Args:
        step: some milliseconds of work, finished when it returns.
        now_s, rest: the clock, and how to wait.
    """
    deadline_s, steps = now_s() + options.seconds, 0
    while now_s() < deadline_s and not ended():
        if options.duty == 0:
            rest(0.1)
            continue
        began_s = now_s()
        step()
        steps += 1
        rest((now_s() - began_s) * (1 / options.duty - 1))
    return steps


def main() -> int:
    options = parse()
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed here: run this with an engine environment's interpreter.", file=sys.stderr)
        return 2
    if options.device >= torch.cuda.device_count():
        print(f"There is no CUDA device {options.device} here.", file=sys.stderr)
        return 2
    time.sleep(options.after)
    device = torch.device("cuda", options.device)
    held = torch.empty(round(options.memory_gib * GIB), dtype=torch.uint8, device=device)
    matrix = torch.randn(options.size, options.size, dtype=torch.bfloat16, device=device)

    def step() -> None:
        for _ in range(4):
            torch.mm(matrix, matrix)
        torch.cuda.synchronize(device)

    step()
    print(f"pid {os.getpid()} is on GPU {options.device} for {options.seconds:g} s", flush=True)
    steps = keep_busy(options, step, time.monotonic, time.sleep, _closed if options.until_eof else lambda: False)
    print(f"{steps} steps, {held.numel() / GIB:.1f} GiB held", flush=True)
    return 0


def _closed() -> bool:
    readable, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(readable) and not sys.stdin.buffer.read1(1)


if __name__ == "__main__":
    sys.exit(main())
