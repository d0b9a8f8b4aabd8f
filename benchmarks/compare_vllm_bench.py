"""The same server and the same seeded requests, measured by `vllm bench serve` and by us, alternating.

    python benchmarks/compare_vllm_bench.py [--kind h200] [--engine DIR] [--rounds 5] [--out FILE]

Prompts and send times are those of that client's `random` data set, so both send the same text at the same times;
the prefix cache is emptied before every run. Prints medians per round and the ratio of ours to theirs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from pytest_llmperf import vllm
from pytest_llmperf.clock import SystemClock, seconds
from pytest_llmperf.config.settings import Settings, with_engine_options
from pytest_llmperf.engines.process.environment import Environment, find_environment
from pytest_llmperf.engines.process.launch import Launcher
from pytest_llmperf.engines.process.pool import EnginePool, lock_of_this_machine
from pytest_llmperf.engines.server import Server
from pytest_llmperf.load.process import ProcessTransport
from pytest_llmperf.model.request import Request
from pytest_llmperf.session.replay import Replayer
from pytest_llmperf.session.warm_up import warm_up
from pytest_llmperf.workload import Workload

ROOT = Path(__file__).parents[1]
METRICS = {
    "TTFT": ("ttft_p50", "median_ttft_ms"),
    "TPOT": ("tpot_p50", "median_tpot_ms"),
    "ITL": ("itl_p50", "median_itl_ms"),
}
MEAN = {"TPOT, mean": ("tpot_mean", "mean_tpot_ms")}
# What the server itself says of each client's run: the two share its cores, so they slow it differently.
SERVER_TPOT = "vllm:request_time_per_output_token_seconds"


@dataclass(frozen=True)
class Case:
    """What is sent, and to what.

    Args:
        requests: of `tokens_in` and `tokens_out` tokens each.
        rate: of a Poisson process, per second.
    """

    model: str
    context: int
    requests: int
    tokens_in: int
    tokens_out: int
    rate: int


CASES = {
    "cpu": Case("tiny", 4096, requests=60, tokens_in=200, tokens_out=64, rate=4),
    "h200": Case("llama-3.1-8b", 16384, requests=100, tokens_in=1024, tokens_out=128, rate=10),
}


@dataclass(frozen=True)
class Bench:
    """vLLM's own client, in the environment of the engine."""

    case: Case
    environment: Environment

    def run(self, *arguments: str) -> str:
        """What its Python prints."""
        env = {**os.environ, "HF_HUB_OFFLINE": "1"}
        env.pop("PYTHONPATH", None)  # ours, not the engine's
        if self.environment.pythonpath is not None:
            env["PYTHONPATH"] = str(self.environment.pythonpath)
        command = [*self.environment.prefix, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments[:4])} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout


@dataclass(frozen=True)
class Given(Workload):
    """A workload with prompts and send times that `vllm bench serve` drew."""

    prompts: tuple[tuple[str, float], ...]
    tokens_out: int

    def requests(self, seed_offset: int = 0) -> tuple[Request, ...]:
        del seed_offset
        return tuple(
            Request(index, prompt, self.tokens_out, None, at_ns=seconds(at_s))
            for index, (prompt, at_s) in enumerate(self.prompts)
        )

    @property
    def concurrency(self) -> None:
        return None

    def __str__(self) -> str:
        return "vllm bench serve, random"


def theirs(bench: Bench, server: Server, seed: int, folder: Path) -> dict[str, float]:
    """Run `vllm bench serve`; its result file."""
    assert server.model is not None
    case = bench.case
    bench.run(
        "-m", "vllm.entrypoints.cli.main", "bench", "serve",
        "--backend", "openai", "--base-url", server.contact.url, "--model", server.contact.served_name,
        "--tokenizer", server.model.path_or_hub_id, "--dataset-name", "random",
        "--random-input-len", str(case.tokens_in), "--random-output-len", str(case.tokens_out),
        "--num-prompts", str(case.requests), "--request-rate", str(case.rate), "--seed", str(seed), "--ignore-eos",
        "--temperature", "0", "--disable-tqdm",
        "--save-result", "--result-dir", str(folder), "--result-filename", "theirs.json",
    )  # fmt: skip
    return json.loads((folder / "theirs.json").read_text())


def prompts(bench: Bench, server: Server, seed: int) -> Given:
    assert server.model is not None
    case = bench.case
    script = ROOT / "benchmarks" / "vllm_random_prompts.py"
    numbers = [str(number) for number in (case.requests, case.tokens_in, case.tokens_out, case.rate, seed)]
    output = bench.run(str(script), server.model.path_or_hub_id, *numbers)
    (line,) = [line for line in output.splitlines() if line.startswith("PROMPTS ")]
    made = tuple((prompt, at) for prompt, at in json.loads(line.removeprefix("PROMPTS ")))
    return Given(made, case.tokens_out)


def compare(kind: str, engine: str | None, rounds: int) -> str:
    """The table, in Markdown."""
    case = CASES[kind]
    bench = Bench(case, find_environment("vllm", kind, engine, ROOT))
    settings = Settings() if engine is None else with_engine_options(Settings(), [f"vllm={engine}"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        launcher = Launcher(settings, ROOT, folder, kind, SystemClock(), random.Random(), print)
        with EnginePool(launcher, lock_of_this_machine()) as pool:
            server = pool.acquire(vllm(case.model, max_model_len=case.context).on(kind))
            replayer = Replayer(ProcessTransport(), lambda: datetime.now(UTC))
            rows = [one_round(bench, server, replayer, seed, folder) for seed in range(rounds)]
    return table(rows, case.requests)


def one_round(
    bench: Bench, server: Server, replayer: Replayer, seed: int, folder: Path
) -> dict[str, tuple[float, float]]:
    """Both clients on one seed; who goes first alternates. Metric → (ours, theirs), ms."""
    workload = prompts(bench, server, seed)
    warm_up(server, workload, replayer)

    def we() -> dict[str, float]:
        tpot_before = server_tpot(server)
        run = replayer.run(server, workload, 0)
        assert all(record.ok for record in run.records), [r.detail for r in run.records if not r.ok][:1]
        values = {name: run.metrics.require(ours) for name, (ours, _) in (METRICS | MEAN).items()}
        return values | {"server": mean_since(tpot_before, server)}

    def they() -> dict[str, float]:
        server.reset_cache()
        tpot_before = server_tpot(server)
        result = theirs(bench, server, seed, folder)
        assert result["completed"] == bench.case.requests
        values = {name: result[key] for name, (_, key) in (METRICS | MEAN).items()}
        return values | {"server": mean_since(tpot_before, server)}

    if seed % 2:
        their, our = they(), we()
    else:
        our, their = we(), they()
    print(seed, our, their, flush=True)
    rows = {name: (our[name], their[name]) for name in METRICS}
    (mean,) = MEAN
    return rows | {"TPOT ÷ the server's own, means": (our[mean] / our["server"], their[mean] / their["server"])}


def server_tpot(server: Server) -> tuple[float, float]:
    """Sum in seconds and count of the server's own time per output token."""
    scrape = server.counters.pages().get("")
    assert scrape is not None
    return scrape.total(f"{SERVER_TPOT}_sum") or 0.0, scrape.total(f"{SERVER_TPOT}_count") or 0.0


def mean_since(earlier: tuple[float, float], server: Server) -> float:
    """The server's own mean time per output token since then, ms."""
    after = server_tpot(server)
    return 1000 * (after[0] - earlier[0]) / (after[1] - earlier[1])


def table(rows: list[dict[str, tuple[float, float]]], requests: int) -> str:
    rounds = " | ".join(f"round {number}" for number in range(1, len(rows) + 1))
    lines = [f"| median of {requests} requests, ms | {rounds} | median | ours ÷ theirs, median of the rounds |"]
    lines.append("|---" * (len(rows) + 3) + "|")
    for name in rows[0]:
        for side, who in enumerate(("ours", "vllm bench serve")):
            values = [row[name][side] for row in rows]
            ratio = median(row[name][0] / row[name][1] for row in rows)
            shown = f"{ratio:.3f}" if side == 0 else ""
            digits = 4 if "÷" in name else 2
            cells = " | ".join(f"{value:.{digits}f}" for value in (*values, median(values)))
            lines.append(f"| {name}, {who} | {cells} | {shown} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=sorted(CASES), default="cpu", help="of this machine (cpu)")
    parser.add_argument("--engine", help="environment or unpacked bundle of vLLM; default: as pytest finds it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    text = compare(args.kind, args.engine, args.rounds)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
