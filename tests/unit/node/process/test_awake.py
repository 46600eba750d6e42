"""From a write on processors are kept awake, until nothing was written for a while."""

import asyncio
import struct

import pytest

from milena.model.errors import StartupError
from node.process.awake import Awake
from tests.support.time.virtual_time import after, virtual

HOLD_MS = 10


@pytest.fixture
def device(tmp_path):
    path = tmp_path / "cpu_dma_latency"
    path.touch()
    return path


def bounds(device):
    """All that was written to it; each write replaces the one before where it is a device."""
    return [bound for (bound,) in struct.iter_unpack("=i", device.read_bytes())]


def awake_of(device):
    return Awake(HOLD_MS, loop=asyncio.get_running_loop(), device=str(device))


@virtual
async def test_nothing_is_asked_for_before_somebody_writes(device):
    awake = awake_of(device)
    await after(1_000)
    assert bounds(device) == [-1]
    awake.close()


@virtual
async def test_many_writes_ask_once_and_it_ends_when_they_do(device):
    awake = awake_of(device)
    for _ in range(7):
        awake.on_write()
        await after(HOLD_MS - 1)
        assert bounds(device) == [-1, 0]
    await after(HOLD_MS + 1)
    assert bounds(device) == [-1, 0, -1]
    awake.on_write()
    assert bounds(device) == [-1, 0, -1, 0]
    awake.close()
    await after(1_000)
    assert bounds(device) == [-1, 0, -1, 0], "the device forgets whoever closed it"


@virtual
async def test_a_device_that_fails_is_nobody_elses_matter(device, monkeypatch, caplog):
    awake = awake_of(device)

    def fail(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.write", fail)
        awake.on_write()
    assert "not kept awake" in caplog.text
    await after(2 * HOLD_MS)
    awake.close()


@virtual
async def test_where_the_device_is_not_to_be_had_the_node_does_not_start(tmp_path):
    with pytest.raises(StartupError, match=r"cpu_awake_ms=10: .*No such file.*leave cpu_awake_ms"):
        awake_of(tmp_path / "none")
