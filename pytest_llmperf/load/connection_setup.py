"""How a connection becomes usable: TCP, the tunnel of a proxy, TLS."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from dataclasses import dataclass

from pytest_llmperf.model.plan import Channel, LoadPlan

_ROOM = 1 << 18


def tls_context(channel: Channel) -> ssl.SSLContext:
    """How to speak TLS.

    Raises:
        OSError: the file of trusted certificates is not there, or holds none.
    """
    context = ssl.create_default_context(cafile=channel.tls_ca_file)
    if not channel.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


class Tls:
    """One side of a TLS connection, without a socket.

    Attributes:
        established: hands are shaken.
        closed: the server has said that nothing more will come.
    """

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self.established = self.closed = False

    def shake_hands(self, received: bytes = b"") -> bytes:
        """Process received bytes and return the bytes to send. At the end of the handshake `established` is true.

        Raises:
            ssl.SSLError: no agreement, or a certificate that is not trusted.
        """
        if received:
            self._incoming.write(received)
        try:
            self._object.do_handshake()
            self.established = True
        except ssl.SSLWantReadError:
            pass
        return self._outgoing.read()

    def decrypt(self, received: bytes) -> bytes:
        """What the server said in these bytes; empty if a record is not whole yet, or held no data.

        Raises:
            ssl.SSLError: the bytes are no records of this connection.
        """
        self._incoming.write(received)
        parts = []
        try:
            while part := self._object.read(_ROOM):
                parts.append(part)
            self.closed = True
        except ssl.SSLZeroReturnError:
            self.closed = True
        except ssl.SSLWantReadError:
            pass
        return b"".join(parts)

    def encrypt(self, data: bytes) -> bytes:
        self._object.write(data)
        return self._outgoing.read()


_ANSWER_LIMIT_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Route:
    """Where connections of a plan go.

    Args:
        family: of the address.
        address: of the server, or of the proxy.
        host: name that the server's certificate must have.
        tls: None: without.
        connect: what asks the proxy for a tunnel; empty: none is needed.
    """

    family: socket.AddressFamily
    address: tuple[str, int]
    host: str
    tls: ssl.SSLContext | None = None
    connect: bytes = b""


def route_of(plan: LoadPlan) -> Route:
    """One IP address for all connections, IPv4 first: servers that we start listen on 127.0.0.1, not on ::1.

    Raises:
        OSError: the name has no address, or the certificates cannot be read.
    """
    host, port = plan.channel.proxy or (plan.host, plan.port)
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as problem:
        raise OSError(f"cannot resolve {host!r}: {problem}") from problem
    family, _, _, _, address = min(addresses, key=lambda entry: entry[0] != socket.AF_INET)
    context = tls_context(plan.channel) if plan.channel.tls else None
    tunnelled = plan.channel.proxy is not None and context is not None
    target = authority(plan)
    connect = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode() if tunnelled else b""
    return Route(family, (str(address[0]), port), plan.host, context, connect)


def authority(plan: LoadPlan) -> str:
    """HOST:PORT as HTTP writes it."""
    return f"[{plan.host}]:{plan.port}" if ":" in plan.host else f"{plan.host}:{plan.port}"


class Opening:
    """The steps to a usable connection; `step` is called whenever the socket is ready."""

    def __init__(self, connection: socket.socket, route: Route) -> None:
        self._socket = connection
        self._route = route
        self._refused = 0
        self.connected = False
        self._tunnel = b"" if route.connect else None  # what the proxy has answered so far
        self.tls = None if route.tls is None else Tls(route.tls, route.host)

    def begin(self) -> None:
        """Ask for the connection; whatever becomes of it shows in `step`."""
        answer = self._socket.connect_ex(self._route.address)
        self._refused = 0 if answer == errno.EINPROGRESS else answer

    def step(self) -> bool:
        """Go on as far as possible; whether the connection is usable.

        Raises:
            OSError: the connection cannot be opened.
        """
        if not self.connected and not self._connect():
            return False
        if self._tunnel is not None and not self._through_tunnel():
            return False
        return self.tls is None or self._shake_hands(self.tls)

    def _connect(self) -> bool:
        problem = self._refused or self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if problem:
            raise OSError(problem, os.strerror(problem))
        try:
            self._socket.getpeername()
        except OSError:  # woken for an earlier owner of this descriptor
            return False
        self.connected = True
        if self._tunnel is not None:
            self._socket.send(self._route.connect)
        elif self.tls is not None:
            self._socket.send(self.tls.shake_hands())
        return True

    def _through_tunnel(self) -> bool:
        received = self._receive()
        if received is None:
            return False
        self._tunnel = (self._tunnel or b"") + received
        if b"\r\n\r\n" not in self._tunnel:
            if len(self._tunnel) > _ANSWER_LIMIT_BYTES:
                raise OSError("the proxy's answer to CONNECT is too long")
            return False
        status = self._tunnel.split(b"\r\n", 1)[0].decode("latin-1")
        if status.split(" ")[1:2] != ["200"]:
            raise OSError(f"the proxy refuses the tunnel: {status}")
        self._tunnel = None
        if self.tls is not None:
            self._socket.send(self.tls.shake_hands())
        return True

    def _shake_hands(self, tls: Tls) -> bool:
        received = self._receive()
        if received is None:
            return False
        answer = tls.shake_hands(received)
        if answer:
            self._socket.send(answer)
        return tls.established

    def _receive(self) -> bytes | None:
        try:
            data = self._socket.recv(_ANSWER_LIMIT_BYTES)
        except BlockingIOError:
            return None
        if not data:
            raise OSError("closed while it was being opened")
        return data
