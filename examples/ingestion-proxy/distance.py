"""A TCP proxy on loopback that delays both directions: distance.py PORT TARGET_PORT ROUND_TRIP_MS."""

import asyncio
import sys

port, target, round_trip = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1000


async def forward(reader, writer):
    """Forwards each piece of data half a round trip after it was read."""
    loop = asyncio.get_running_loop()
    while data := await reader.read(65536):
        loop.call_later(round_trip / 2, writer.write, data)
    loop.call_later(round_trip / 2, writer.close)


async def connect(reader, writer):
    there, back = await asyncio.open_connection("127.0.0.1", target)
    await asyncio.gather(forward(reader, back), forward(there, writer), return_exceptions=True)


async def main():
    server = await asyncio.start_server(connect, "127.0.0.1", port)
    await server.serve_forever()


asyncio.run(main())
