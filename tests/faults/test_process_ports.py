"""Faults 14, 16: occupied ports, and many processes that choose ports at the same time."""

import os
import random
import socket
import subprocess
import sys
from contextlib import closing

import pytest

from pytest_llmperf.errors import InfrastructureError
from pytest_llmperf.process.ports import is_free, reserve_port, who_listens

if sys.platform != "linux":
    pytest.skip("port locks are tested on Linux", allow_module_level=True)

CHOOSER = """
import os, random, sys
from pathlib import Path
from pytest_llmperf.process.ports import reserve_port
rng, held, claims = random.Random(int(sys.argv[2])), [], Path(sys.argv[1]) / "claims"
for _ in range(int(sys.argv[3])):
    lease = reserve_port(rng, folder=Path(sys.argv[1]) / "locks", ports=range(20000, 20400))
    try:
        os.close(os.open(claims / str(lease.port), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        print("collision", lease.port)
    held.append(lease)
    if len(held) > 40:
        oldest = held.pop(rng.randrange(len(held)))
        (claims / str(oldest.port)).unlink()
        oldest.close()
for lease in held:
    (claims / str(lease.port)).unlink()
    lease.close()
"""


def test_eight_processes_never_choose_the_same_port(tmp_path):
    """Fault 16: 400 ports of which about 320 are held at any time, so that collisions would be the rule."""
    for name in ("locks", "claims"):
        (tmp_path / name).mkdir()
    choosers = [
        subprocess.Popen([sys.executable, "-c", CHOOSER, str(tmp_path), str(seed), "1000"], stdout=subprocess.PIPE,
                         env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
        for seed in range(8)
    ]
    said = [chooser.communicate(timeout=120)[0] for chooser in choosers]
    assert [chooser.returncode for chooser in choosers] == [0] * 8
    assert b"".join(said) == b""


def test_port_that_a_foreign_process_binds_is_not_leased_again(tmp_path):
    """Fault 14."""
    pair = range(19000, 19002)  # below those that servers of other tests have
    with closing(reserve_port(random.Random(1), ports=pair, folder=tmp_path)) as first, socket.socket() as racer:
        racer.bind(("127.0.0.1", first.port))
        first.close()
        with closing(reserve_port(random.Random(1), ports=pair, folder=tmp_path)) as second:
            assert second.port != first.port
            with pytest.raises(InfrastructureError, match="no free port in 19000-19001"):
                reserve_port(random.Random(1), ports=pair, folder=tmp_path)


def test_port_lease_ends_with_process(tmp_path):
    script = (
        "import os, random, sys, pathlib\n"
        "from pytest_llmperf.process.ports import reserve_port\n"
        "lease = reserve_port(random.Random(0), ports=range(19010, 19011), folder=pathlib.Path(sys.argv[1]))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=env, check=False).returncode == -9
    with closing(reserve_port(random.Random(0), ports=range(19010, 19011), folder=tmp_path)) as lease:
        assert lease.port == 19010


def test_listening_process_is_named_by_port():
    """Faults 13 and 15: whoever is on our port can be named."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        listener = who_listens(port)
        assert (listener.pid, listener.uid) == (os.getpid(), os.getuid())
        assert not is_free(port)
    assert who_listens(port) is None
