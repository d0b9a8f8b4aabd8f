#!/usr/bin/env python3
"""Compare two run folders of the same suites field by field, to see that a change of the code changes no verdict.

    pytest suites --emulate h200 -m h200 --llmperf-runs=BEFORE    # with the old code, then with the new code
    python scripts/compare_run_folders.py BEFORE/RUN AFTER/RUN

In virtual time with equal seeds two sessions give equal values. The script ignores fields that differ between any two
sessions: ids, dates, process ids, ports, paths and durations of the machine. Every other difference is listed and gives
exit code 1.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

IGNORED = {"started_at", "wall_clock_jump_ms", "pids", "port", "cpu", "loop_lag_p99_ms", "log"}
#: Temporary folders and run ids within texts.
PLACES = re.compile(r"/[^\s\"']+|\b\d{8}T\d{6}Z-[0-9a-f]+\b")
MOST_SHOWN = 20


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("before", type=Path, help="run folder of the old code")
    parser.add_argument("after", type=Path, help="run folder of the new code")
    arguments = parser.parse_args(argv)
    before, after = content_of(arguments.before), content_of(arguments.after)
    lines = [f"only in {folder}: {name}" for name in sorted(before.keys() ^ after.keys())
             for folder in [arguments.before if name in before else arguments.after]]
    fields = 0
    for name in sorted(before.keys() & after.keys()):
        old, new = dict(leaves(before[name])), dict(leaves(after[name]))
        fields += len(old.keys() | new.keys())
        lines += [f"{name} {path}: {old.get(path)!r} → {new.get(path)!r}" for path in sorted(old.keys() | new.keys())
                  if old.get(path, ...) != new.get(path, ...)]
    tests = [content for name, content in before.items() if name.startswith("tests/")]
    print(f"{len(tests)} tests, {sum(len(test['checks']) for test in tests)} checks, {fields} fields: "
          f"{len(lines)} differences")
    print(*lines[:MOST_SHOWN], sep="\n")
    return 1 if lines or not tests else 0


def content_of(run: Path) -> dict[str, object]:
    """Path below the run folder → content of each file of a test or of its requests."""
    read = {path.relative_to(run).as_posix(): json.loads(path.read_bytes()) for path in run.glob("tests/*.json")}
    for path in run.glob("requests/*.json.gz"):
        read[path.relative_to(run).as_posix()] = json.loads(gzip.decompress(path.read_bytes()))
    return read


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Each number and text of a file with its path, without fields that differ between any two sessions."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key not in IGNORED:
                yield from leaves(part, f"{path}.{key}")
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from leaves(part, f"{path}[{index}]")
    else:
        yield path, PLACES.sub("…", value) if isinstance(value, str) else value


if __name__ == "__main__":
    sys.exit(main())
