"""How Hypothesis looks for counterexamples, and a proxy with TLS and a key for the tests of services.

Hypothesis draws the same examples in every run; `--hypothesis-profile=random` draws others.
"""

import os
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

# pytester takes back what its tests imported, and compiled modules load once in a process: these are there before.
import pandas  # noqa: F401
import pytest
import scipy.stats  # noqa: F401
from hypothesis import HealthCheck, settings

from pytest_llmperf.testing.waiting import until

#: Options of each pytest that a test starts. These plugins take 40 % of the CPU time of an empty pytest session.
LEAN = "-p no:hypothesispytest -p no:benchmark -p no:anyio"
PROXY = Path(__file__).parent / "stubs" / "proxy.py"
SERVICE_KEY = "canary-key-of-a-service-5d1f"

settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("random", settings.get_profile("steady"), derandomize=False)
settings.load_profile("steady")


@pytest.fixture(autouse=True, scope="session")
def lean_sessions():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_ADDOPTS", LEAN)
        yield


@pytest.fixture
def pytester(pytester, monkeypatch):
    """pytest's own fixture removes the variable."""
    monkeypatch.setenv("PYTEST_ADDOPTS", LEAN)
    return pytester


def listens(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def behind_proxy(tmp_path, monkeypatch):
    """Puts nginx or HAProxy in front of ports: behind_proxy("nginx", 8000, 8001) gives the https URL.

    The folder `tmp_path / "proxy"` has ca.pem and the files of the proxy. The variable SERVICE_KEY has the key.
    """
    import trustme

    monkeypatch.setenv("SERVICE_KEY", SERVICE_KEY)
    folder, authority = tmp_path / "proxy", trustme.CA()
    folder.mkdir()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    identity = folder / "identity.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(identity))
    with ExitStack() as processes:

        def start(proxy, *ports):
            if shutil.which(proxy, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None and not os.environ.get("CI"):
                pytest.skip(f"{proxy} is missing. Run: sh scripts/install_test_packages.sh")
            command = [sys.executable, str(PROXY), proxy, str(identity), *map(str, ports)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                                       env=os.environ | {"PROXY_KEY": SERVICE_KEY})
            processes.enter_context(process)
            processes.callback(process.terminate)
            port = int(process.stdout.readline())
            until(lambda: listens(port))
            return f"https://127.0.0.1:{port}"

        yield start


FAKE_NSYS = """#!{python}
import os, sys
from pathlib import Path

notes = Path({notes!r})
with notes.open("a") as file:
    print(*sys.argv[1:], file=file)
verb, *words = sys.argv[1:]
if verb == "launch":
    command = [word for word in words if not word.startswith("--")][0]
    os.execv(command, words[words.index(command):])
if verb == "start":
    (option,) = [word for word in words if word.startswith("--output=")]
    notes.with_name("output").write_text(option.removeprefix("--output="))
if verb == "stop":
    Path(notes.with_name("output").read_text() + ".nsys-rep").write_bytes(b"capture")
"""


@pytest.fixture
def nsys_calls(tmp_path, monkeypatch):
    """Puts a program `nsys` on PATH that executes launched commands and writes a capture; gives its calls."""
    programs, notes = tmp_path / "bin", tmp_path / "notes"
    programs.mkdir()
    (programs / "nsys").write_text(FAKE_NSYS.format(python=sys.executable, notes=str(notes)))
    (programs / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return lambda: notes.read_text().splitlines()
