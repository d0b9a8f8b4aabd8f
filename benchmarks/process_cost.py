"""CPU time per request of one load process and of several, at the same rate: alternating pairs on this machine.

    .venv/bin/python benchmarks/process_cost.py [--processes 4] [--rates 48,192,400,800] [--seconds 8] [--pairs 7]

The server of known timing has a CPU of its own; the load processes share the other CPUs. All runs of a rate send the
same requests at the same times. A wake-up is a voluntary context switch of the load processes, their start included.
"""

from __future__ import annotations

import argparse
import random
import resource
import threading
from dataclasses import dataclass
from math import exp, log
from statistics import mean, stdev

from our_clients import BODY, PATH
from scipy.stats import t as student
from timed import TimedServer

from pytest_llmperf.load.cores import Cores
from pytest_llmperf.load.process import ProcessTransport
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Cost:
    """What a replay cost: CPU time and wake-ups per request, and the share of a CPU that the busiest process used."""

    cpu_ms: float
    wake_ups: float
    busy: float


def requests_at(rate: float, seconds: float) -> tuple[PlannedRequest, ...]:
    """Poisson arrivals."""
    rng, at_s, planned = random.Random(int(rate)), 0.0, []
    while at_s < seconds:
        planned.append(PlannedRequest(len(planned), PATH, BODY, at_ns=round(at_s * 1e9)))
        at_s += rng.expovariate(rate)
    return tuple(planned)


def cost(server: TimedServer, planned: tuple[PlannedRequest, ...], processes: int) -> Cost:
    cores = Cores.apart(server.clients, server.cpus)
    plan = LoadPlan("127.0.0.1", server.port, planned)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    replay = ProcessTransport(processes=processes, cores=cores).replay(plan, cancel=threading.Event())
    wake_ups = resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw - before.ru_nvcsw
    assert replay.load is not None
    return Cost(replay.cpu_ns / 1e6 / len(planned), wake_ups / len(planned), replay.load.busy)


def row(rate: float, requests: int, one: list[Cost], several: list[Cost]) -> str:
    """A line of the table. The interval of the ratio is Student's t on the logarithms of the pairs."""
    logs = [log(b.cpu_ms / a.cpu_ms) for a, b in zip(one, several, strict=True)]
    half = student.ppf((1 + CONFIDENCE) / 2, len(logs) - 1) * stdev(logs) / len(logs) ** 0.5
    low, middle, high = (exp(mean(logs) + distance) for distance in (-half, 0.0, half))

    def average(costs: list[Cost], name: str) -> float:
        return mean(getattr(each, name) for each in costs)

    return (f"| {rate:g} | {requests:,} | {100 * average(one, 'busy'):.0f} % | {average(one, 'wake_ups'):.0f} | "
            f"{average(several, 'wake_ups'):.0f} | {average(one, 'cpu_ms'):.2f} | {average(several, 'cpu_ms'):.2f} | "
            f"{middle:.2f} ({low:.2f}–{high:.2f}) |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--rates", default="48,192,400,800")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--pairs", type=int, default=7)
    options = parser.parse_args()
    print(f"| requests per second | requests | one process, busy | wake-ups per request, one | {options.processes} | "
          f"CPU per request, one, ms | {options.processes}, ms | ratio |")
    with TimedServer() as server:
        for rate in map(float, options.rates.split(",")):
            planned = requests_at(rate, options.seconds)
            costs: dict[int, list[Cost]] = {1: [], options.processes: []}
            for pair in range(options.pairs):
                for processes in sorted(costs, reverse=pair % 2 == 1):
                    costs[processes].append(cost(server, planned, processes))
            print(row(rate, len(planned), *costs.values()), flush=True)


if __name__ == "__main__":
    main()
