"""The partitioner places keys as Kafka's default partitioner does."""

import pytest

from milena.model.partitioner import murmur2, partition_for_key


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_equals_kafkas(key: bytes, expected: int) -> None:
    # Source: UtilsTest.testMurmur2 of apache/kafka.
    assert murmur2(key) == expected & 0xFFFFFFFF


@pytest.mark.parametrize("count", [1, 2, 3, 7, 1000])
def test_partition_is_within_the_topic(count: int) -> None:
    assert {partition_for_key(b"%d" % i, count) for i in range(3 * count)} <= set(range(count))
