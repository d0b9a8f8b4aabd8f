"""Bytes go out in order, and a client that does not read holds up nobody but itself."""

import asyncio

from pytest_llmperf.emulator.http.stream_writer import StreamWriter


class Connection:
    """ASGI's send, which waits while the client does not read."""

    def __init__(self):
        self.sent = []
        self.reads = asyncio.Event()
        self.reads.set()

    async def send(self, message):
        while not self.reads.is_set():
            await self.reads.wait()
            for _ in range(10 - int(message["body"])):  # more than one wait, and the later ones would overtake
                await asyncio.sleep(0)
        self.sent.append((message["body"], message["more_body"]))


def test_stream_writer_sends_immediately_in_order():
    async def run():
        connection = Connection()
        outlet = StreamWriter(connection.send)
        outlet.write(b"a")
        outlet.write(b"b", more=False)
        assert connection.sent == [(b"a", True), (b"b", False)]
        await outlet.flushed()

    asyncio.run(run())


def test_a_slow_client_gets_everything_in_order_and_write_never_waits():
    async def run():
        connection = Connection()
        outlet = StreamWriter(connection.send)
        outlet.write(b"0")
        connection.reads.clear()
        for number in range(1, 6):
            outlet.write(b"%d" % number)
        assert connection.sent == [(b"0", True)]
        await asyncio.sleep(0.01)
        connection.reads.set()
        await outlet.flushed()
        outlet.write(b"6", more=False)
        assert [body for body, _ in connection.sent] == [b"%d" % number for number in range(7)]

    asyncio.run(run())


def test_closed_stream_writer_drops_unsent_bytes():
    async def run():
        connection = Connection()
        connection.reads.clear()
        outlet = StreamWriter(connection.send)
        outlet.write(b"0")
        outlet.write(b"1")
        await asyncio.sleep(0)
        outlet.close()
        connection.reads.set()
        await asyncio.sleep(0.01)
        assert connection.sent == []

    asyncio.run(run())
