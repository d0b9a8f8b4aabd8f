"""A Ray cluster on this machine: each node has an address of its own, and a clock of its own by a time namespace."""

import os
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_llmperf.testing.waiting import until

RAY = str(Path(sys.executable).parent / "ray")
HEAD = "127.0.0.2"
GCS, CLIENT = 16379, 11001


@dataclass
class Node:
    """A node in process and time namespaces: the end of its first process ends all of them."""

    address: str
    ahead_s: int
    process: subprocess.Popen = field(repr=False)

    def kill(self):
        self.process.kill()
        self.process.wait(60)


@dataclass
class Cluster:
    """Nodes by address; the head first. Each node has a file system of its own at `folder`."""

    folder: Path
    nodes: dict[str, Node] = field(default_factory=dict)
    head: str = HEAD
    gcs_port: int = GCS
    client_port: int = CLIENT

    @property
    def url(self):
        return f"ray://{self.head}:{self.client_port}"

    def start(self, address, ahead_s=0, cpus=2, env=None):
        """Start a node whose monotonic clock is so far ahead of ours, and wait until it listens."""
        head = ["--head", f"--port={self.gcs_port}", f"--ray-client-server-port={self.client_port}",
                "--include-dashboard=false", f"--temp-dir={self.folder}"]
        apart = ["unshare", "--time", f"--monotonic={ahead_s}", f"--boottime={ahead_s}", "--pid", "--mount-proc",
                 "--fork", "--kill-child", "sh", "-c", f'mount -t tmpfs none {self.folder} && "$@"; exit $?', "sh"]
        ports = ["--min-worker-port=0", "--max-worker-port=0"]
        command = [*apart, RAY, "start", "--block", f"--node-ip-address={address}", f"--num-cpus={cpus}", *ports,
                   "--object-store-memory=100000000", "--disable-usage-stats",
                   *(head if address == self.head else [f"--address={self.head}:{self.gcs_port}"])]
        self.folder.mkdir(exist_ok=True)
        log = (self.folder.parent / f"{address}.log").open("wb")
        variables = os.environ | {"RAY_worker_niceness": "0", "RAY_AUTH_MODE": "disabled"} | (env or {})
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=variables)
        log.close()
        self.nodes[address] = node = Node(address, ahead_s, process)
        return node

    def stop(self, address):
        self.nodes.pop(address).kill()

    def wait_for_nodes(self):
        """Until every started node is in the cluster, and no other."""
        script = (
            "import ray, time\n"
            f"ray.init('{self.url}', logging_level=40)\n"
            "def alive(): return sorted(n['NodeManagerAddress'] for n in ray.nodes() if n['Alive'])\n"
            f"while alive() != {sorted(self.nodes)}: time.sleep(0.2)\n"
        )
        self.wait_for_port()  # and its server may still refuse clients
        command = [sys.executable, "-c", script]
        until(lambda: subprocess.run(command, check=False, timeout=180).returncode == 0, 180)

    def wait_for_port(self):
        until(self._listens, 120)

    def _listens(self):
        with suppress(OSError):
            socket.create_connection((self.head, self.client_port), 1).close()
            return True
        return False


@pytest.fixture(scope="session", autouse=True)
def without_token():
    """A token in the home folder would be asked of clients, and not of nodes of other sessions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        yield


@pytest.fixture(scope="session")
def cluster():
    """A head and two nodes, whose clocks are 0, 1,000 and 70,000 s ahead of ours."""
    folder = Path(tempfile.mkdtemp(prefix="llmperf-ray-", dir="/tmp"))  # short: Ray has sockets there
    made = Cluster(folder / "s")
    try:
        for address, ahead_s in ((HEAD, 0), ("127.0.0.3", 1_000), ("127.0.0.4", 70_000)):
            made.start(address, ahead_s)
            made.wait_for_nodes()
        yield made
    finally:
        for node in made.nodes.values():
            with suppress(ProcessLookupError):
                node.kill()
        subprocess.run(["rm", "-rf", str(folder)], check=False)


@pytest.fixture
def cluster_with_token(tmp_path):
    """A head that asks clients for the token in `token`, in a folder of the test."""
    folder = Path(tempfile.mkdtemp(prefix="llmperf-ray-", dir="/tmp"))
    (tmp_path / "token").write_text("0123456789abcdef" * 2)
    made = Cluster(folder / "s", head="127.0.0.7", gcs_port=16479, client_port=11101)
    try:
        made.start(made.head, env={"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")})
        made.wait_for_port()
        yield made
    finally:
        made.stop(made.head)
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
