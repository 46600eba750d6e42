"""The bare server that syncs: the disk has it before anybody is answered, and who comes meanwhile shares the next."""

import asyncio
import os
import threading

import pytest

from loadtest.bench.servers import bare_server
from loadtest.bench.servers.bare_server import SharedSyncs


class SlowDisk:
    """Syncs end when they are let; what was in the file at the end of each."""

    def __init__(self, path):
        self.path = path
        self.synced = []
        self.begun, self.let = threading.Semaphore(0), threading.Semaphore(0)
        self.failure = None

    def fdatasync(self, descriptor):
        self.begun.release()
        self.let.acquire()
        if self.failure is not None:
            raise self.failure
        os.fsync(descriptor)
        self.synced.append(self.path.read_bytes())


@pytest.fixture
def disk(tmp_path, monkeypatch):
    disk = SlowDisk(tmp_path / "log")
    monkeypatch.setattr(bare_server.os, "fdatasync", disk.fdatasync)
    return disk


@pytest.fixture
def log(disk):
    descriptor = os.open(disk.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    yield SharedSyncs(descriptor)
    os.close(descriptor)


async def test_those_who_come_during_a_sync_share_the_next(disk, log):
    first = asyncio.create_task(log.append(b"a"))
    await asyncio.to_thread(disk.begun.acquire)
    others = [asyncio.create_task(log.append(data)) for data in (b"b", b"c")]
    await asyncio.sleep(0)
    assert not first.done()
    disk.let.release()
    await first
    assert disk.synced == [b"a"]
    assert not any(other.done() for other in others)
    disk.let.release()
    await asyncio.gather(*others)
    assert disk.synced == [b"a", b"abc"]


async def test_a_sync_that_fails_is_nobodys_success(disk, log):
    disk.failure = OSError("the disk is gone")
    disk.let.release()
    with pytest.raises(OSError, match="the disk is gone"):
        await log.append(b"a")
