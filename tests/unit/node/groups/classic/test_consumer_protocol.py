"""The bytes of consumers, and bytes of anybody else."""

import struct
from random import Random

import pytest

from node.groups.classic.consumer_protocol import assigned_partitions, subscribed_topics


def text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


def subscription(*topics: str, version: int = 3) -> bytes:
    body = struct.pack(">hi", version, len(topics)) + b"".join(map(text, topics))
    return body + struct.pack(">i", -1)


def assignment(**topics: list[int]) -> bytes:
    body = struct.pack(">hi", 0, len(topics))
    for topic, numbers in topics.items():
        body += text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return body + struct.pack(">i", -1)


def test_what_consumers_send() -> None:
    assert subscribed_topics(subscription("a", "ü")) == ["a", "ü"]
    assert subscribed_topics(subscription()) == []
    assert assigned_partitions(assignment(b=[2, 0], a=[1])) == [("a", 1), ("b", 0), ("b", 2)]
    assert assigned_partitions(assignment()) == []
    assert assigned_partitions(b"") == ()


@pytest.mark.parametrize(
    "data",
    [
        b"\x00",
        struct.pack(">hi", 0, -1),
        struct.pack(">hi", 0, 1 << 30),
        struct.pack(">hih", 0, 1, -1),
        struct.pack(">hih", 0, 1, 9) + b"short",
        struct.pack(">hih", 0, 1, 2) + b"\xff\xfe" + bytes(8),
        struct.pack(">hih", 0, 1, 1) + b"t" + struct.pack(">i", 1 << 30),
    ],
)
def test_other_bytes_are_no_assignment(data: bytes) -> None:
    assert assigned_partitions(data) is None


def test_any_bytes_are_read_without_an_error() -> None:
    rng = Random(1)
    whole = (subscription("a", "bc", "d"), assignment(a=[1, 2], b=[3]))
    for _ in range(2_000):
        data = bytearray(rng.choice(whole))
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 127, 128, 255))
        cut = bytes(data[: rng.randint(0, len(data))])
        for found in (subscribed_topics(cut), assigned_partitions(cut)):
            assert found is None or isinstance(found, list | tuple)
    assert subscribed_topics(b"") is None
