"""TLS on bytes: what the socket brought goes in, what the server said comes out."""

from __future__ import annotations

import ssl

from pytest_llmperf.model.plan import Channel

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
        """What the server said in these bytes; empty where a record is not whole yet, or held no data.

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
