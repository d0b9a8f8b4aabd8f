"""A Ray cluster on this machine: each node has an address of its own, and a clock of its own by a time namespace."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_llmperf.testing.waiting import until

RAY = str(Path(sys.executable).parent / "ray")
HEAD = "127.0.0.2"
GCS, CLIENT = 16379, 11001
ADDRESS = f"ray://{HEAD}:{CLIENT}"


@dataclass
class Node:
    """A node in process and time namespaces: the end of its first process ends all of them."""

    address: str
    ahead_s: int
    process: subprocess.Popen = field(repr=False)

    def kill(self):
        self.process.kill()
        self.process.wait(30)


@dataclass
class Cluster:
    """Nodes by address; the head first."""

    folder: Path
    nodes: dict[str, Node] = field(default_factory=dict)
    url: str = ADDRESS

    def start(self, address, ahead_s=0, cpus=2, env=None, *options):
        """Start a node whose monotonic clock is so far ahead of ours, and wait until it listens."""
        head = ["--head", f"--port={GCS}", f"--ray-client-server-port={CLIENT}", "--include-dashboard=false",
                f"--temp-dir={self.folder}"]
        command = [
            "unshare", "--time", f"--monotonic={ahead_s}", f"--boottime={ahead_s}", "--pid", "--mount-proc", "--fork",
            "--kill-child", RAY, "start", "--block", f"--node-ip-address={address}", f"--num-cpus={cpus}",
            "--object-store-memory=100000000", "--min-worker-port=0", "--max-worker-port=0", "--disable-usage-stats",
            *(head if address == HEAD else [f"--address={HEAD}:{GCS}"]), *options,
        ]
        log = (self.folder.parent / f"{address}.log").open("wb")
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | (env or {}))
        log.close()
        self.nodes[address] = node = Node(address, ahead_s, process)
        return node

    def stop(self, address):
        self.nodes.pop(address).kill()

    def wait_for_nodes(self):
        """Until every started node is in the cluster, and no other."""
        wanted = sorted(self.nodes)
        until(lambda: _alive_nodes() == wanted, 180)


def _alive_nodes():
    script = (
        "import ray\n"
        f"ray.init('{ADDRESS}', logging_level=40)\n"
        "print(*sorted(n['NodeManagerAddress'] for n in ray.nodes() if n['Alive']))\n"
    )
    time.sleep(0.5)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    return done.stdout.split() if done.returncode == 0 else []


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """A head and two nodes, whose clocks are 0, 1,000 and 70,000 s ahead of ours."""
    folder = Path("/tmp") / f"llmperf-ray-{os.getpid()}"  # short: Ray has sockets there
    folder.mkdir()
    made = Cluster(folder / "s")
    try:
        made.start(HEAD)
        made.start("127.0.0.3", 1_000)
        made.start("127.0.0.4", 70_000)
        made.wait_for_nodes()
        yield made
    finally:
        for node in made.nodes.values():
            with suppress(ProcessLookupError):
                node.kill()
        subprocess.run(["rm", "-rf", str(folder)], check=False)


def running(*words):
    """Ids of the processes with all these words in the command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
                if all(word in line for word in words):
                    found.append(int(entry.name))
    return found


@pytest.fixture
def remains():
    """Load processes and actors that still run on any node."""
    return lambda: running("load.worker") + running("ray::HostLoad")
