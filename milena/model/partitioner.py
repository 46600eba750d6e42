"""The partition of a key: murmur2, as in Kafka's default partitioner, for server and client."""

MURMUR2_SEED = 0x9747B28C
MURMUR2_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Return the 32-bit murmur2 of the key, unsigned, as Kafka computes it.

    Source: Austin Appleby's MurmurHash2, with the seed of org.apache.kafka.common.utils.Utils.
    """
    length = len(key)
    h = (MURMUR2_SEED ^ length) & _MASK
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(key[i : i + 4], "little") * MURMUR2_M & _MASK
        k = (k ^ k >> 24) * MURMUR2_M & _MASK
        h = (h * MURMUR2_M & _MASK) ^ k
    if length > whole:
        h = (h ^ int.from_bytes(key[whole:], "little")) * MURMUR2_M & _MASK
    h = (h ^ h >> 13) * MURMUR2_M & _MASK
    return h ^ h >> 15


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the partition in [0, partition_count) of a record with this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
