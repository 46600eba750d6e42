"""Readers of an old log that is not in memory, in a process of their own.

    python -m loadtest.bench.clients.cold_readers URL TOPIC FOLDER RECORDS STEP CLIENTS

Each client fetches 1 MB after the other, from the log's beginning to its end and again, as fast as it is answered.
Before every request what the page cache holds of the segments in FOLDER is dropped, so that no client finds there what
another one has read. It says ``ready`` once all have been answered, reads until its input ends, and says then how many
bytes it was given.

A process of its own: what it takes in must not delay the clocks of those who measure.
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
    """The files of a partition's log."""
    return sorted(folder.glob("*.log"))


def drop_from_cache(descriptors: Iterable[int]) -> None:
    """Forget every page of these files that needs no writing."""
    for descriptor in descriptors:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def make_cold(folder: Path) -> None:
    """Have what is written of a log on the disk, and in memory no more."""
    for path in segments_in(folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            drop_from_cache([descriptor])
        finally:
            os.close(descriptor)


class ColdLoad(HttpLoad):
    """One client, which finds nothing in memory."""

    def __init__(self, url: str, ask: Ask, descriptors: Sequence[int]) -> None:
        super().__init__(url, ask, connections=1)
        self._descriptors = descriptors

    def next_request(self) -> bytes:
        """The next piece of the log."""
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
    # Nothing is ever written to it: that it can be read means that it has ended.
    loop.add_reader(sys.stdin, stop)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.gather(*(load.run(SECONDS_MAX) for load in loads))
    for load in loads:
        load.close()
    return sum(load.answer_bytes for load in loads) - before


def main() -> None:
    """Read until the input ends."""
    die_with_parent()
    url, topic, folder, *numbers = sys.argv[1:]
    records, step, clients = map(int, numbers)
    ask = fetch_ask(url, topic, range(0, records, step), max_bytes=FETCH_BYTES, units=1)
    descriptors = [os.open(path, os.O_RDONLY) for path in segments_in(Path(folder))]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        read_bytes = runner.run(_read(url, ask, descriptors, clients))
    sys.stdout.write(f"{read_bytes}\n")


if __name__ == "__main__":
    main()
