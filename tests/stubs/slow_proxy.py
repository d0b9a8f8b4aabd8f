"""A TCP proxy on 127.0.0.1 that holds back every request for an answer: a connector that never hits, in short.

The answer's tokens pass as they come. slow_proxy.py TARGET_PORT DELAY_S, prints its own port.
"""

import asyncio
import sys


async def pump(reader, writer, before_each=None):
    try:
        while data := await reader.read(1 << 16):
            if before_each is not None:
                await before_each(data)
            writer.write(data)
            await writer.drain()
    except (ConnectionError, asyncio.CancelledError):
        pass
    finally:
        writer.close()


async def serve(target, delay_s):
    async def hold_back(data):
        if data.startswith(b"POST /v1/completions") and b'"stream":true' in data:
            await asyncio.sleep(delay_s)

    async def connection(client_reader, client_writer):
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(pump(client_reader, server_writer, hold_back), pump(server_reader, client_writer))

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
