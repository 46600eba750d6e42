"""The ceiling of the stack: aiohttp's bare server on uvloop, which reads a body and answers a little JSON.

    python -m loadtest.bench.servers.bare_server PORT [FILE]

Large blocks are kept after use, as a node keeps them: no route, no log, no check. A request without a body gets the
file, read anew each time: what copies cost on this machine.
"""

import asyncio
import ctypes
import os
import sys

import uvloop
from aiohttp import web

_MALLOC_SETTINGS = ((-1, 512 << 20), (-2, 32 << 20), (-3, 32 << 20))
"""glibc's M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD."""

_HEADERS = {"Content-Type": "application/json"}


async def _serve(port: int, path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    size = os.fstat(descriptor).st_size

    async def answer(request: web.BaseRequest) -> web.Response:
        if request.method == "GET":
            return web.Response(body=os.pread(descriptor, size, 0))
        body = await request.content.read()
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
        runner.run(_serve(int(sys.argv[1]), sys.argv[2] if sys.argv[2:] else os.devnull))


if __name__ == "__main__":
    main()
