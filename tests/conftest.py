"""How Hypothesis looks for counterexamples, and a proxy with TLS and a key for the tests of services.

Hypothesis draws the same examples in every run; `--hypothesis-profile=random` draws others.
"""

import io
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tarfile
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
#: llmperf.toml of sessions in real time on a machine that others use, too: its delays are not what they test.
BUSY_MACHINE = """
send_delay_p99_limit_ms = 60000
stamp_error_p99_limit_ms = 60000
clock_gap_limit_ms = 60000
coalesced_limit = 1
"""
#: What makes their servers steady after the shortest warm-up.
STEADY_AT_ONCE = "from pytest_llmperf.session import warm_up\n\nwarm_up.AGREE = 1000.0\n"
#: Folders and links of an image's root, in which this machine's files are mounted.
FOLDERS = ("usr", "etc", "proc", "sys", "dev", "tmp", "root", "run")
LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin"}
#: Without CAP_SYS_RESOURCE Podman's larger defaults cannot be set.
LIMITS = ("--ulimit=nofile=16384:16384", "--ulimit=nproc=16384:16384")
STRANGER = 12345  # a user without an entry in /etc/passwd

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


@pytest.fixture(scope="session")
def empty_root():
    """The tar of an empty root: images are made from the files of this machine, because no registry is asked."""
    files = io.BytesIO()
    with tarfile.open(fileobj=files, mode="w") as archive:
        for name in FOLDERS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(entry)
        for name, target in LINKS.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return files.getvalue()


@pytest.fixture
def podman(empty_root, tmp_path):
    """Runs a command in a container of Podman, as a restricted pod does: without root, capabilities, a network or an
    entry in /etc/passwd, with a read-only root. The plugin lies in one folder, /llmperf; `python` is what runs it.

    Returns:
        A function of the command and of options of `podman run`; it gives the completed process.
    """
    program, image = shutil.which("podman"), f"llmperf-test-{os.getpid()}:pod"
    if program is None or subprocess.run([program, "info"], check=False, capture_output=True, timeout=60).returncode:
        pytest.skip("podman does not run here: apt-get install podman runc")
    low_level = ["--runtime", "runc"] if shutil.which("runc") else []
    subprocess.run([program, "import", "-", image], input=empty_root, check=True, capture_output=True, timeout=120)
    (tmp_path / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")

    def run(*command, options=(), python=Path(sys.base_prefix), network="none", start=subprocess.run):
        places = {Path("/usr"), Path("/etc"), Path(sys.base_prefix), python}
        mounts = [f"--volume={place}:{place}:ro" for place in places]
        mounts += [f"--volume={sysconfig.get_path('purelib')}:/llmperf:ro",
                   f"--volume={tmp_path / 'passwd'}:/etc/passwd:ro"]
        variables = {"PATH": f"{python}/bin:/usr/bin:/bin", "PYTHONPATH": "/llmperf", "PYTEST_ADDOPTS": LEAN,
                     "HOME": "/nonexistent"}
        argv = [program, *low_level, "run", "--rm", "--init=false", f"--network={network}", "--read-only",
                "--read-only-tmpfs=false", f"--user={STRANGER}:{STRANGER}", "--cap-drop=all",
                "--security-opt=no-new-privileges", *LIMITS, *mounts,
                *(f"--env={name}={value}" for name, value in variables.items()), *options, image, *command]
        arguments = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return start(argv, **arguments, **({"timeout": 900} if start is subprocess.run else {}))

    yield run
    # Ends every container of the image: other workers have images of other names.
    subprocess.run([program, "rmi", "--force", image], check=False, capture_output=True, timeout=120)
