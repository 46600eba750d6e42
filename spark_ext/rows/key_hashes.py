"""Hash a column of keys at once (pure), with the same results as ``milena.model.partitioner``.

Hashing each key by itself would cost more than everything else that the sink does with a record.
"""

import numpy as np
import pyarrow as pa

from milena.model.partitioner import MURMUR2_M, MURMUR2_SEED, murmur2

LONG_KEY_BYTES = 256
"""Longer keys are hashed one by one: the number of steps for all keys is a quarter of the longest key's bytes."""

NO_KEY = -1

_WORD_BYTES = 4
_M = np.uint32(MURMUR2_M)
_REST_MASKS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], dtype=np.uint32)
"""Masks for the word after the last whole word of a key, by how many of its bytes belong to the key."""

Integers = np.ndarray[tuple[int], np.dtype[np.int64]]
Words = np.ndarray[tuple[int], np.dtype[np.uint32]]


def positive_hashes(keys: pa.Array) -> Integers:
    """Return 31 bits of murmur2 of each key, which decide its partition; ``NO_KEY`` for a record without a key."""
    starts, lengths, data = _buffers(keys)
    short = lengths <= LONG_KEY_BYTES
    hashes = _murmur2(starts, np.where(short, lengths, 0), data).astype(np.int64)
    for index in np.flatnonzero(~short).tolist():
        hashes[index] = murmur2(keys[index].as_py())
    hashes &= 0x7FFFFFFF
    if keys.null_count:
        hashes[~keys.is_valid().to_numpy(zero_copy_only=False)] = NO_KEY
    return hashes


def _buffers(keys: pa.Array) -> tuple[Integers, Integers, Words]:
    """Return the start and the length of each key, and the word that starts at each byte."""
    _, offsets_buffer, data_buffer = keys.buffers()
    width = np.int64 if pa.types.is_large_binary(keys.type) else np.int32
    count = len(keys)
    offsets = np.frombuffer(offsets_buffer, width)[keys.offset : keys.offset + count + 1]
    lengths = np.diff(offsets).astype(np.int64)
    if keys.null_count:
        lengths[~keys.is_valid().to_numpy(zero_copy_only=False)] = 0
    first, end = int(offsets[0]), int(offsets[-1])
    # Pad by one word, so that the last key can be read in whole words.
    data = bytes(memoryview(data_buffer or b"")[first:end]) + bytes(_WORD_BYTES)
    words = np.ndarray(len(data) - _WORD_BYTES + 1, np.dtype("<u4"), data, strides=(1,))
    return offsets[:-1].astype(np.int64) - first, lengths, words


def _murmur2(starts: Integers, lengths: Integers, data: Words) -> Words:
    hashes = lengths.astype(np.uint32) ^ np.uint32(MURMUR2_SEED)
    whole, rest = np.divmod(lengths, _WORD_BYTES)
    for step in range(int(whole.max(initial=0))):
        mine = np.flatnonzero(whole > step)
        words = data[starts[mine] + step * _WORD_BYTES] * _M
        words = (words ^ words >> np.uint32(24)) * _M
        hashes[mine] = hashes[mine] * _M ^ words
    last = data[starts + whole * _WORD_BYTES] & _REST_MASKS[rest]
    hashes = np.where(rest > 0, (hashes ^ last) * _M, hashes)
    hashes = (hashes ^ hashes >> np.uint32(13)) * _M
    return hashes ^ hashes >> np.uint32(15)
