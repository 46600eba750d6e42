"""Hashes of a column of keys are those of each key."""

import random

import pyarrow as pa
import pytest

from milena.model.partitioner import murmur2
from spark_ext.rows.key_hashes import LONG_KEY_BYTES, NO_KEY, positive_hashes

LENGTHS = [*range(14), LONG_KEY_BYTES - 1, LONG_KEY_BYTES, LONG_KEY_BYTES + 1, 3 * LONG_KEY_BYTES]


def keys_of(count, seed=5):
    dice = random.Random(seed)
    return [dice.choice([None, dice.randbytes(dice.choice(LENGTHS))]) for _ in range(count)]


def one_by_one(keys):
    return [NO_KEY if key is None else murmur2(key) & 0x7FFFFFFF for key in keys]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_each_hash_is_that_of_its_key(kind):
    keys = keys_of(500)
    assert positive_hashes(pa.array(keys, kind)).tolist() == one_by_one(keys)


def test_a_part_of_a_column_is_hashed_as_it_stands():
    keys = keys_of(100)
    assert positive_hashes(pa.array(keys, pa.binary())[30:57]).tolist() == one_by_one(keys[30:57])


@pytest.mark.parametrize("keys", [[], [None, None], [b""]])
def test_columns_without_a_byte(keys):
    assert positive_hashes(pa.array(keys, pa.binary())).tolist() == one_by_one(keys)
