"""Blocking calls beside a loop, on a thread that nobody waits for."""

import asyncio
import gzip
import os
import threading

import pytest

from milena.commands.producing.line_source import READ_BYTES, BadSourceError, LineSource
from milena.commands.standard_streams import DaemonThread, write_all


async def test_calls_run_one_after_the_other_and_give_what_they_return_or_raise():
    threads = []

    def work(result):
        threads.append(threading.current_thread().name)
        if isinstance(result, Exception):
            raise result
        return result

    with DaemonThread("worker") as thread:
        assert await thread.call(lambda: work(1)) == 1
        assert await thread.call(lambda: work(None)) is None
        with pytest.raises(OSError, match="broken"):
            await thread.call(lambda: work(OSError("broken")))
        assert await asyncio.gather(*(thread.call(lambda n=n: work(n)) for n in range(5))) == [
            *range(5)
        ]
    assert set(threads) == {"worker"}


async def test_who_no_longer_waits_is_not_told():
    begin, end = threading.Event(), threading.Event()

    def work():
        begin.set()
        end.wait()

    with DaemonThread("worker") as thread:
        waiting = asyncio.create_task(thread.call(work))
        await asyncio.to_thread(begin.wait)
        waiting.cancel()
        end.set()
        assert await thread.call(lambda: 5) == 5


def test_a_loop_that_ended_leaves_a_call_behind():
    begin, end, after = threading.Event(), threading.Event(), threading.Event()

    def work():
        begin.set()
        end.wait()

    async def leave(thread):
        waiting = asyncio.create_task(thread.call(work))
        await asyncio.to_thread(begin.wait)
        waiting.cancel()

    async def come_back(thread):
        await thread.call(after.set)

    with DaemonThread("worker") as thread:
        asyncio.run(leave(thread))
        end.set()
        asyncio.run(come_back(thread))
    assert after.is_set()


def test_everything_is_written_and_a_reader_that_left_is_an_error():
    reading, writing = os.pipe()
    data = os.urandom(1_000_000)
    found = bytearray()

    def read():
        while len(found) < len(data):
            found.extend(os.read(reading, 4096))
        os.close(reading)

    thread = threading.Thread(target=read)
    thread.start()
    write_all(writing, data)
    thread.join()
    assert found == data
    with pytest.raises(BrokenPipeError):
        write_all(writing, b"more")
    os.close(writing)


# -- sources ---------------------------------------------------------------------------------------


def drain(source):
    pieces = []
    while (got := source.read())[0]:
        pieces.append(got)
    return b"".join(piece for piece, _ in pieces), pieces[-1][1] if pieces else 0


def test_a_file_is_read_to_its_end(tmp_path):
    data = os.urandom(1_000_000)
    (tmp_path / "plain").write_bytes(data)
    with LineSource(str(tmp_path / "plain"), is_packed=False) as source:
        assert source.size_bytes == len(data)
        assert drain(source) == (data, len(data))
        assert source.read()[0] == b""


def test_a_packed_file_is_unpacked_and_its_position_is_that_in_the_file(tmp_path):
    data = b"abc" * 500_000
    packed = gzip.compress(data) + gzip.compress(b"a second member")
    (tmp_path / "packed").write_bytes(packed)
    with LineSource(str(tmp_path / "packed"), is_packed=True) as source:
        assert source.size_bytes == len(packed)
        assert drain(source) == (data + b"a second member", len(packed))


@pytest.mark.parametrize(
    "data",
    [b"no gzip", gzip.compress(os.urandom(500_000))[:-9], b"\x1f\x8b\x08\x00" + b"\xff" * 50],
)
def test_a_packed_file_that_is_none_or_torn_is_an_error_that_names_it(tmp_path, data):
    (tmp_path / "torn").write_bytes(data)
    with (
        LineSource(str(tmp_path / "torn"), is_packed=True) as source,
        pytest.raises(BadSourceError, match=r"cannot read .*torn"),
    ):
        drain(source)


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(BadSourceError, match="No such file"):
        LineSource(str(tmp_path / "none"), is_packed=False)


@pytest.mark.parametrize("padding", [b"", b"\0" * 700_000])
@pytest.mark.parametrize("sizes", [(0,), (1, 0, 5), (300_000, 3_000_000)])
def test_members_of_any_size_are_unpacked_one_after_the_other(tmp_path, sizes, padding):
    parts = [os.urandom(min(size, 1_000)) * (size // 1_000 or 1) if size else b"" for size in sizes]
    (tmp_path / "packed").write_bytes(b"".join(map(gzip.compress, parts)) + padding)
    with LineSource(str(tmp_path / "packed"), is_packed=True) as source:
        assert drain(source)[0] == b"".join(parts)


def test_an_empty_file_is_no_lines_packed_or_not(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    for is_packed in (True, False):
        with LineSource(str(tmp_path / "empty"), is_packed=is_packed) as source:
            assert source.read() == (b"", 0)


def test_little_that_unpacks_to_much_is_given_in_pieces(tmp_path):
    (tmp_path / "bomb").write_bytes(gzip.compress(bytes(50_000_000)))
    with LineSource(str(tmp_path / "bomb"), is_packed=True) as source:
        sizes = []
        while piece := source.read()[0]:
            sizes.append(len(piece))
    assert sum(sizes) == 50_000_000
    assert max(sizes) <= READ_BYTES


@pytest.mark.parametrize("is_packed", [True, False])
async def test_a_source_that_is_silent_can_be_closed(tmp_path, is_packed):
    """A pipe into which nobody writes: closing must not wait for the read that is under way."""
    os.mkfifo(tmp_path / "pipe")
    writing = os.open(tmp_path / "pipe", os.O_RDWR)
    with DaemonThread("input") as thread:
        with LineSource(str(tmp_path / "pipe"), is_packed=is_packed) as source:
            assert source.size_bytes is None
            begun = threading.Event()
            waiting = asyncio.create_task(thread.call(lambda: (begun.set(), source.read())))
            await asyncio.to_thread(begun.wait)
        waiting.cancel()
        os.write(writing, b"x")
    os.close(writing)
