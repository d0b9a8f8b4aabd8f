#!/usr/bin/env python3
"""A bad neighbour, for trying out on a GPU host that contention is noticed: PyTorch that keeps a GPU's SMs busy.

    python scripts/gpu_neighbour.py --seconds 60 --memory-gib 2 &
    pytest -m h200 suites/test_serving.py

Started before the server, the test ends with HardwareBusy; started while it measures (`--after 90`), with an ERROR that
names this process. It ends by itself after `--seconds`. It needs PyTorch with CUDA, as vLLM's environment has it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

LONGEST_S = 3600
GIB = 2**30
SIZE = 8192  # of the square matrices


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; argparse ends the process where they make no sense."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help=f"how long, at most {LONGEST_S} (default: 60)")
    parser.add_argument("--after", type=float, default=0.0, metavar="SECONDS", help="wait before it touches the GPU")
    parser.add_argument("--device", type=int, default=0, help="CUDA's index of the GPU (default: 0)")
    parser.add_argument("--memory-gib", type=float, default=1.0, help="memory that it holds (default: 1)")
    options = parser.parse_args(arguments)
    if not 0 < options.seconds <= LONGEST_S:
        parser.error(f"--seconds {options.seconds:g}: above 0 and at most {LONGEST_S}")
    return options


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
    matrix = torch.randn(SIZE, SIZE, dtype=torch.bfloat16, device=device)
    print(f"pid {os.getpid()} is on GPU {options.device} for {options.seconds:g} s", flush=True)
    until_s = time.monotonic() + options.seconds
    while time.monotonic() < until_s:
        torch.mm(matrix, matrix)
        torch.cuda.synchronize(device)
    print(f"{held.numel() / GIB:.1f} GiB held")
    return 0


if __name__ == "__main__":
    sys.exit(main())
