"""Baselines on a disk that fills up and on one that cannot be written.

    unshare -rm python baseline_disk.py FOLDER

Mounts a small file system of its own, which nobody else sees and which ends with the process.
"""

import json
import subprocess
import sys
from pathlib import Path

from pytest_llmperf.baseline.store import Store
from pytest_llmperf.errors import BaselineError
from pytest_llmperf.results.baseline import Baseline, StoredMeasurement, StoredSession

PAGE_BYTES = 4096


def files(value):
    values = {f"metric{i}": (float(value),) for i in range(100)}
    session = StoredSession("id", "date", None, "host", None, True, ((0, 1),), values)
    stored = StoredMeasurement({}, (session,), ("metric0",), dict.fromkeys(values, "1"))
    return {f"h200/{name}/test_{name}.json": Baseline(name, {"": stored}) for name in ("x", "y", f"z{value}")}


def values(root):
    """Test → its value."""
    baselines = Store(root).read_all("h200").values()
    return {baseline.test: baseline.measurements[""].sessions[0].values("metric0")[0] for baseline in baselines}


def attempt(root, value):
    """Write the value. Returns the error message and the stored values."""
    try:
        with Store(root, timeout_s=1).update() as write:
            write(files(value))
    except BaselineError as error:
        return {"said": str(error), "values": values(root)}
    return {"said": "", "values": values(root)}


def fill(path, free_pages):
    """Take all room but so many pages."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"0" * PAGE_BYTES)
        except OSError:
            file.truncate(max(0, file.tell() - free_pages * PAGE_BYTES))


def main(mount):
    root, filler = mount / "baselines", mount / "filler"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", mount], check=True)
    outcomes = {"first": attempt(root, 0), "full": []}
    for free_pages in range(12):
        fill(filler, free_pages)
        outcomes["full"].append(attempt(root, free_pages + 1))
        filler.unlink()
        subprocess.run(["rm", "-rf", *root.glob("h200/z*")], check=True)
        attempt(root, 0)
    subprocess.run(["mount", "-o", "remount,ro", mount], check=True)
    outcomes["read-only"] = attempt(root, 99)
    subprocess.run(["mount", "-o", "remount,rw", mount], check=True)
    outcomes["last"] = attempt(root, 99)
    return outcomes


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
