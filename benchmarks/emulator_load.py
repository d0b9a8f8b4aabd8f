"""Opens streams against an emulated server and reads them to their ends: `emulator_load.py PORT STREAMS TOKENS`.

The script only counts bytes, so the server is the bottleneck.
"""

import asyncio
import json
import sys

import uvloop


class Reader(asyncio.Protocol):
    def __init__(self, body: bytes, ended: asyncio.Future) -> None:
        self.body = body
        self.ended = ended
        self.tail = b""

    def connection_made(self, transport) -> None:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(self.body)}\r\n\r\n"
        transport.write(head.encode() + self.body)

    def data_received(self, data: bytes) -> None:
        self.tail = self.tail[-16:] + data
        if self.tail.endswith(b"0\r\n\r\n") and not self.ended.done():
            self.ended.set_result(True)

    def connection_lost(self, error) -> None:  # noqa: ARG002
        if not self.ended.done():
            self.ended.set_result(False)


async def main(port: int, streams: int, tokens: int) -> int:
    loop = asyncio.get_running_loop()
    ends = []
    for index in range(streams):
        request_body = {"prompt": [index % 1000] * 32, "max_tokens": tokens, "stream": True,
                 "stream_options": {"include_usage": True, "continuous_usage_stats": True}}  # fmt: skip
        ended = loop.create_future()
        body = json.dumps(request_body).encode()
        await loop.create_connection(lambda body=body, ended=ended: Reader(body, ended), "127.0.0.1", port)
        ends.append(ended)
    return sum(await asyncio.gather(*ends))


if __name__ == "__main__":
    port, streams, tokens = map(int, sys.argv[1:])
    print(uvloop.run(main(port, streams, tokens)))
