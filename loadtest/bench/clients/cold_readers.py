"""Read an old log that is not in the page cache, in a separate process.

    python -m loadtest.bench.clients.cold_readers URL TOPIC FOLDER RECORDS STEP CLIENTS

Each client repeatedly fetches the log from start to end, 1 MB per request, without a pause. Before each request it
drops the segments in FOLDER from the page cache, so that no client profits from what another one has read. The process
prints ``ready`` when all clients have got a response. It reads until its standard input ends, and then prints the
number of bytes that it got.

The process is separate because receiving this data would delay the timers of the process that measures.
"""

import asyncio
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import uvloop

from loadtest.bench.clients.http_load import Ask, HttpLoad
from loadtest.bench.servers.subject import fetch_ask
from loadtest.cluster.node_process import die_with_parent

FETCH_BYTES = 1 << 20
SECONDS_MAX = 120.0


def segments_in(folder: Path) -> list[Path]:
    """Return the segment files of a partition."""
    return sorted(folder.glob("*.log"))


def drop_from_cache(descriptors: Iterable[int]) -> None:
    """Drop all clean pages of these files from the page cache."""
    for descriptor in descriptors:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def make_cold(folder: Path) -> None:
    """Sync the segments of a partition, and drop them from the page cache."""
    for path in segments_in(folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            drop_from_cache([descriptor])
        finally:
            os.close(descriptor)


class ColdLoad(HttpLoad):
    """A client that drops the log from the page cache before each request."""

    def __init__(self, url: str, ask: Ask, descriptors: Sequence[int]) -> None:
        super().__init__(url, ask, connections=1)
        self._descriptors = descriptors

    def next_request(self) -> bytes:
        """Drop the log from the page cache; return the next request."""
        drop_from_cache(self._descriptors)
        return super().next_request()

    def stop(self) -> None:
        """Stop after the response in flight."""
        self._ends_s = 0.0


async def _read(url: str, ask: Ask, descriptors: Sequence[int], clients: int) -> int:
    loads = [ColdLoad(url, ask, descriptors) for _ in range(clients)]
    for load in loads:
        await load.open()
        await load.run(0)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_reader(sys.stdin)
        for load in loads:
            load.stop()

    before = sum(load.answer_bytes for load in loads)
    # The parent never writes to standard input. So it becomes readable only when it ends.
    loop.add_reader(sys.stdin, stop)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.gather(*(load.run(SECONDS_MAX) for load in loads))
    for load in loads:
        load.close()
    return sum(load.answer_bytes for load in loads) - before


def main() -> None:
    """Read until standard input ends."""
    die_with_parent()
    url, topic, folder, *numbers = sys.argv[1:]
    records, step, clients = map(int, numbers)
    ask = fetch_ask(url, topic, range(0, records, step), max_bytes=FETCH_BYTES)
    descriptors = [os.open(path, os.O_RDONLY) for path in segments_in(Path(folder))]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        read_bytes = runner.run(_read(url, ask, descriptors, clients))
    sys.stdout.write(f"{read_bytes}\n")


if __name__ == "__main__":
    main()
