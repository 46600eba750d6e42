"""Frames: however a stream is cut, the same requests come out, and no more is held than has arrived."""

import random
import struct

import pytest

from node.kafka.wire.frames import FrameSplitter, body_of, framed, head_of
from node.kafka.wire.primitives import MalformedFrameError
from tests.support.clusters.kafka_clients import request_frame


def with_size(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def test_a_stream_gives_the_same_frames_however_it_is_cut() -> None:
    rng = random.Random(2)
    frames = [rng.randbytes(rng.choice([8, 9, 20, 3_000])) for _ in range(50)]
    stream = b"".join(map(with_size, frames))
    for most in (1, 3, 7, 100, 5_000, len(stream)):
        splitter, found, at = FrameSplitter(4_000), [], 0
        while at < len(stream):
            size = rng.randint(1, most)
            found += splitter.feed(stream[at : at + size])
            at += size
            assert splitter.held_bytes <= 4_004
        assert found == frames
        assert splitter.held_bytes == 0


def test_the_announced_size_takes_no_memory() -> None:
    splitter = FrameSplitter(32 << 20)
    assert splitter.feed(struct.pack(">i", 32 << 20) + b"ab") == []
    assert splitter.held_bytes == 6


@pytest.mark.parametrize("size", [-1, -(1 << 31), 0, 7, 101, (1 << 31) - 1])
@pytest.mark.parametrize("cut", [4, 2])
def test_a_size_that_no_request_has_is_malformed(size: int, cut: int) -> None:
    splitter, head = FrameSplitter(100), struct.pack(">i", size)
    assert splitter.feed(with_size(bytes(8))) == [bytes(8)]
    with pytest.raises(MalformedFrameError):
        splitter.feed(head[:cut]) or splitter.feed(head[cut:])


def test_more_frames_at_once_than_the_bound_are_malformed() -> None:
    frame = request_frame(18, 0, b"")
    splitter = FrameSplitter(1_000, 3)
    for _ in range(2):
        assert len(splitter.feed(frame * 3 + frame[:5])) == 3
        assert len(splitter.feed(frame[5:])) == 1
    with pytest.raises(MalformedFrameError, match="more than 3 requests at once"):
        splitter.feed(frame * 4)
    splitter.frames_max = None
    assert len(splitter.feed(frame * 100)) == 100


def test_http_is_no_frame() -> None:
    with pytest.raises(MalformedFrameError):
        FrameSplitter(32 << 20).feed(b"GET / HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize(("client_id", "expected"), [("app", "app"), (None, "")])
@pytest.mark.parametrize("version", [0, 9])
def test_a_header_has_key_version_id_and_client(
    client_id: str | None, expected: str, version: int
) -> None:
    frame = request_frame(3, version, b"body", correlation_id=-7, client_id=client_id)[4:]
    head = head_of(frame)
    assert (head.key, head.version, head.correlation_id) == (3, version, -7)
    found, reader = body_of(frame, is_flexible=version >= 9)
    assert found == expected
    assert bytes(reader.rest()) == b"body"


def test_a_header_that_does_not_end_is_malformed() -> None:
    with pytest.raises(MalformedFrameError):
        body_of(struct.pack(">hhih", 3, 9, 1, 300), is_flexible=True)


def test_a_response_begins_with_its_size_and_correlation_id() -> None:
    assert b"".join(framed(5, [b"ab", memoryview(b"c")], is_flexible=False)) == (
        struct.pack(">ii", 7, 5) + b"abc"
    )
    assert b"".join(framed(5, [b"ab"], is_flexible=True)) == struct.pack(">ii", 7, 5) + b"\0ab"
