"""A load balancer for TCP: connections to one address end at several targets in turn."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress

Target = tuple[str, int]
BYTES = 1 << 16


class _Balancer:
    """Runs in one call of ``asyncio.run``."""

    def __init__(self, port: int, targets: Callable[[], Sequence[Target]]) -> None:
        self._port = port
        self._targets = targets
        self._next = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, on_start: Callable[[], None], stop: asyncio.Event) -> None:
        server = await asyncio.start_server(self._on_client, "127.0.0.1", self._port)
        on_start()
        await stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # Transports close in the next turn.
        await asyncio.sleep(0)

    def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._take(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect a client to the next target that lets it in."""
        targets = self._targets()
        with closing(writer):
            for _ in targets:
                self._next += 1
                with suppress(OSError):
                    far = await asyncio.open_connection(*targets[self._next % len(targets)])
                    with closing(far[1]):
                        await asyncio.gather(_copy(reader, far[1]), _copy(far[0], writer))
                    return


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextmanager
def balancing(port: int, targets: Callable[[], Sequence[Target]]) -> Iterator[None]:
    """Listen on a loopback port, on a thread. ``targets`` is asked for each connection."""
    started = threading.Event()
    ends: list[Callable[[], object]] = []

    async def run() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        ends.append(lambda: loop.call_soon_threadsafe(stop.set))
        await _Balancer(port, targets).run(started.set, stop)

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert started.wait(10), "the balancer does not listen"
    try:
        yield
    finally:
        ends[0]()
        thread.join()
