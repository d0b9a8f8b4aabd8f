"""Kills processes that write baselines, at random moments, and looks at what they leave.

    baseline_writer.py FOLDER KILLS SEED

Prints one JSON object. Alone in its process, because a process with threads must not fork.
"""

import json
import os
import random
import signal
import sys
import time
from collections import Counter, deque
from pathlib import Path

from pytest_llmperf.baseline.store import Store
from pytest_llmperf.baseline.text import decode
from pytest_llmperf.results.baseline import Baseline, StoredMeasurement, StoredSession

KIND = "h200"
PATHS = tuple(f"{KIND}/{suite}/test_{name}.json" for suite in "ab" for name in "xy")
SOMETIMES = f"{KIND}/c/test_sometimes.json"  # there in odd generations only
PAUSE_S = 0.03  # lets another writer have the lock
METRICS = tuple(f"metric{i}" for i in range(12))


def content(path, generation):
    values = {metric: (float(generation),) * 3 for metric in METRICS}
    session = StoredSession("id", "date", None, "host", None, True, ((0, 1), (1, 1), (2, 1)), values)
    return Baseline(path, {"": StoredMeasurement({}, (session,), METRICS[:1], dict.fromkeys(METRICS, "1"))})


def generation_of(baseline):
    (generation,) = {
        value for session in baseline.measurements[""].sessions for row in session.metrics.values() for value in row
    }
    return int(generation)


def consistent(baselines):
    """The common generation of all files. An odd generation also has the file `SOMETIMES`.

    Raises:
        ValueError: the files have different generations, or a file is missing or superfluous.
    """
    generations = {generation_of(baseline) for baseline in baselines.values()} or {0}
    if len(generations) != 1:
        raise ValueError(f"files of generations {sorted(generations)}")
    generation = generations.pop()
    expected = set() if not generation else {*PATHS, *([SOMETIMES] if generation % 2 else [])}
    if set(baselines) != expected:
        raise ValueError(f"generation {generation} with {sorted(baselines)}")
    return generation


def write_on(root, pipe):
    """One generation after the other, told before and after."""
    try:
        while True:
            store = Store(root)
            with store.update() as write:
                generation = consistent(store.read_all(KIND)) + 1
                files = {path: content(path, generation) for path in PATHS}
                files[SOMETIMES] = content(SOMETIMES, generation) if generation % 2 else None
                os.write(pipe, b"begun %d\n" % generation)
                started_ns = time.monotonic_ns()
                write(files)
                os.write(pipe, b"done %d\ntook_ns %d\n" % (generation, time.monotonic_ns() - started_ns))
            time.sleep(PAUSE_S)
    except BaseException as error:
        os.write(pipe, f"failed {error!r}\n".encode())
    finally:
        os._exit(1)


def start(root):
    """A writer, once it is at work; gives (pid, the pipe that it tells)."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        write_on(root, writing)
    os.close(writing)
    return pid, reading


def kill(writers, delays):
    """End each after its delay; gives what they told."""
    acknowledged = dict.fromkeys(writers, b"")
    for (writer, delay_s) in zip(writers, delays, strict=True):
        acknowledged[writer] += os.read(writer[1], 100)  # it has begun
        time.sleep(delay_s)
        os.kill(writer[0], signal.SIGKILL)
    for writer in writers:
        os.waitpid(writer[0], 0)
        while text := os.read(writer[1], 10_000):
            acknowledged[writer] += text
        os.close(writer[1])
    return [line.split(maxsplit=1) for text in acknowledged.values() for line in text.decode().splitlines()]


def left_behind(root):
    if (root / ".update" / "journal.json").exists():
        waiting = sum(path.exists() for path in (root / p for p in PATHS)) and any(root.rglob(".*.new"))
        return "decided, some files old" if waiting else "decided, all files new"
    return "undecided, temporaries" if any(root.rglob(".*.new")) else "between two updates"


def look(root, counts):
    """Each file is whole, and of an old or of the new generation: nobody has helped yet."""
    for path in (*PATHS, SOMETIMES):
        if (root / path).exists():
            generation = generation_of(decode((root / path).read_bytes(), path))
            if not counts["done"] <= generation <= counts["begun"]:
                raise ValueError(f"{path} is of generation {generation}, known are {counts}")


def main(root, kills, rng):
    counts, states = {"begun": 0, "done": 0}, Counter()
    started_s, took_s, times_s = time.monotonic(), 0.02, deque(maxlen=20)
    for number in range(kills):
        writers = [start(root) for _ in range(1 if number % 4 else 2)]
        for word, rest in kill(writers, [rng.uniform(0, 1.3 * took_s) for _ in writers]):
            if word == "failed":
                raise ValueError(rest)
            if word == "took_ns":
                times_s.append(int(rest) / 1e9)
                took_s = sorted(times_s)[len(times_s) // 4]  # a busy machine stalls some for long
            else:
                counts[word] = max(counts[word], int(rest))
        states[left_behind(root)] += 1
        look(root, counts)
        if number % 2:  # otherwise the next writer has to
            generation = consistent(Store(root).read_all(KIND))
            if not counts["done"] <= generation <= counts["begun"]:
                raise ValueError(f"generation {generation}, and {counts}: lost")
    with Store(root).update() as write:
        write({SOMETIMES: content(SOMETIMES, 1)})
    if any(root.rglob(".*.new")):
        raise ValueError("a killed writer's temporaries are still there")
    seconds = time.monotonic() - started_s
    return {"kills": kills, "generations": counts["begun"], "seconds": seconds, "update_s": took_s, **states}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), random.Random(sys.argv[3]))))
