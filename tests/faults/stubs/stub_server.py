"""A server with a child and a detached grandchild, misbehaving as told. Stands alone: standard library only.

Every process writes `FOLDER/pids/<role>` with its pid and starttime, and `FOLDER/ready` tells that all are there.
"""

import _multiprocessing
import argparse
import os
import signal
import socket
import sys
import time
from pathlib import Path

SEMAPHORES = []


def register(folder: Path, role: str) -> None:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    path = folder / "pids" / role
    path.with_suffix(".tmp").write_text(f"{os.getpid()} {fields[19]}")
    path.with_suffix(".tmp").rename(path)


def sleep_long() -> None:
    for _ in range(600):
        time.sleep(0.5)
    sys.exit(0)  # nothing of a broken test stays for longer than five minutes


def child(folder: Path) -> None:
    if os.fork() == 0:
        register(folder, "child")
        sleep_long()


def detached(folder: Path) -> None:
    """Double fork, own session, deaf to SIGTERM, holding a shared-memory segment."""
    if (middle := os.fork()) == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        name = f"psm_{os.getpid():x}{time.monotonic_ns():x}"
        fd = os.open(f"/dev/shm/{name}", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        os.truncate(fd, 4096)
        (folder / "segment").write_text(name)
        register(folder, "detached")
        sleep_long()
    os.waitpid(middle, 0)


def segment(folder: Path) -> None:
    """A semaphore that multiprocessing's resource tracker does not know, so only a supervisor removes it."""
    name = f"mp-{os.getpid():x}{time.monotonic_ns():x}"
    SEMAPHORES.append(_multiprocessing.SemLock(1, 1, 1, f"/{name}", False))
    (folder / "semaphore").write_text(f"sem.{name}")
    register(folder, "segment")


def zombie(folder: Path) -> None:
    """Start a child process that ends at once, without a parent that waits for it."""
    if os.fork() == 0:
        register(folder, "zombie")
        os._exit(0)


def listen(port: int) -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        server.settimeout(300)
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")


PARTS = {"child": child, "detached": detached, "segment": segment, "zombie": zombie}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--with", dest="parts", action="append", choices=list(PARTS), default=[])
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--say", default="", help="text to print, with Python escapes, as Latin-1 bytes")
    parser.add_argument("--burst-bytes", type=int, default=0, help="so many bytes without a line end")
    parser.add_argument("--exit-code", type=int)
    options = parser.parse_args()
    (options.folder / "pids").mkdir(parents=True, exist_ok=True)
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    register(options.folder, "server")
    for part in options.parts:
        PARTS[part](options.folder)
    sys.stdout.buffer.write(options.say.encode("latin-1").decode("unicode_escape").encode("latin-1"))
    for start in range(0, options.burst_bytes, 65536):
        sys.stdout.buffer.write(b"x" * min(65536, options.burst_bytes - start))
    sys.stdout.buffer.flush()
    if options.exit_code is not None:
        sys.exit(options.exit_code)
    while any(not (options.folder / "pids" / part).exists() for part in options.parts):
        time.sleep(0.005)
    (options.folder / "ready").touch()
    listen(options.port) if options.port else sleep_long()


if __name__ == "__main__":
    main()
