"""A minimal server on the same stack: aiohttp on uvloop reads a body and sends a little JSON.

    python -m loadtest.bench.servers.bare_server PORT DIRECTORY

It shows the most that a server on this stack can reach. It keeps freed memory for reuse, like a node. It has no
routing, no checks and no replicas. Three requests show costs that every such server has on this host:

    POST    responds at once: the cost of a round trip and of its wake-ups
    PUT     first appends the body to the directory's file ``log``, and syncs it: a round trip and the disk
    GET     responds with the directory's file ``content``, and reads it each time: the cost of copying
"""

import asyncio
import ctypes
import os
import sys
from pathlib import Path

import uvloop
from aiohttp import web

_MALLOC_SETTINGS = ((-1, 512 << 20), (-2, 32 << 20), (-3, 32 << 20))
"""glibc's M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD."""

_HEADERS = {"Content-Type": "application/json"}


class SharedSyncs:
    """A file for appends. Appends that arrive during a sync share the next sync."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = asyncio.Lock()
        self._arrived: list[bytes] = []
        self._next: asyncio.Task[None] | None = None
        """The sync that will include the data that has arrived; it has not started."""

    async def append(self, data: bytes) -> None:
        """Append the data, and return when they are on the disk.

        Raises:
            OSError: the data may not be on the disk.
        """
        self._arrived.append(data)
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._sync())
        await asyncio.shield(self._next)

    async def _sync(self) -> None:
        async with self._lock:
            arrived, self._arrived, self._next = b"".join(self._arrived), [], None
            await asyncio.to_thread(self._write_and_sync, arrived)

    def _write_and_sync(self, data: bytes) -> None:
        os.write(self._descriptor, data)
        os.fdatasync(self._descriptor)


async def _serve(port: int, directory: Path) -> None:
    content = os.open(directory / "content", os.O_RDONLY)
    size = os.fstat(content).st_size
    log = SharedSyncs(os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND))

    async def answer(request: web.BaseRequest) -> web.Response:
        if request.method == "GET":
            return web.Response(body=os.pread(content, size, 0))
        body = await request.content.read()
        if request.method == "PUT":
            await log.append(body)
        return web.Response(body=b'{"partition":0,"offset":%d}' % len(body), headers=_HEADERS)

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def main() -> None:
    """Serve until killed."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in _MALLOC_SETTINGS:
            mallopt(parameter, value)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(int(sys.argv[1]), Path(sys.argv[2])))


if __name__ == "__main__":
    main()
