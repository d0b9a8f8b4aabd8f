"""A TCP proxy on 127.0.0.1 that holds back the first bytes of every answer: a connector that never hits, in short.

slow_proxy.py TARGET_PORT DELAY_S, prints its own port.
"""

import asyncio
import sys


async def pump(reader, writer, before_answer=None):
    try:
        while data := await reader.read(1 << 16):
            if before_answer is not None:
                await before_answer(data)
            writer.write(data)
            await writer.drain()
    except (ConnectionError, asyncio.CancelledError):
        pass
    finally:
        writer.close()


async def serve(target, delay_s):
    async def connection(client_reader, client_writer):
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", target)
        streaming = False

        async def note_request(data):
            nonlocal streaming
            if data.startswith(b"POST /v1/completions") and b'"stream":true' in data:
                streaming = True

        async def hold_back(_data):
            nonlocal streaming
            if streaming:
                streaming = False
                await asyncio.sleep(delay_s)

        await asyncio.gather(
            pump(client_reader, server_writer, note_request), pump(server_reader, client_writer, hold_back)
        )

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
