"""What a producer may be told."""

import pytest

from milena.model.types import Codec
from milena.producing.options import ProducerOptions


def test_the_defaults_write_every_record_once():
    options = ProducerOptions()
    assert (options.acks, options.is_sequenced, options.codec) == ("all", True, Codec.NONE)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"acks": 2}, "use 'all', 1 or 0"),
        ({"acks": "1"}, "use 'all', 1 or 0"),
        ({"compression": "snappy"}, "use none, gzip, lz4, zstd"),
        ({"linger_ms": -1}, "linger_ms=-1 must be between 0 and 3600000"),
        ({"batch_bytes": 10}, "batch_bytes=10 must be between 1024"),
        ({"buffer_bytes": 1000}, "buffer_bytes=1000 must be between 262144"),
        ({"max_block_ms": -1}, "max_block_ms"),
        ({"delivery_timeout_ms": 0}, "delivery_timeout_ms"),
        ({"delivery_timeout_ms": 5, "linger_ms": 5}, "must be more than linger_ms"),
        ({"request_timeout_ms": 0}, "request_timeout_ms"),
        ({"retry_backoff_ms": 2000}, "retry_backoff_ms=2000 must be between 1 and 1000"),
        ({"retry_backoff_max_ms": 0}, "retry_backoff"),
    ],
)
def test_what_is_out_of_range_is_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        ProducerOptions(**wrong)


@pytest.mark.parametrize(
    ("acks", "idempotent", "is_sequenced"),
    [("all", True, True), (1, True, True), (0, True, False), ("all", False, False)],
)
def test_what_nobody_is_asked_about_needs_no_number(acks, idempotent, is_sequenced):
    assert ProducerOptions(acks=acks, idempotent=idempotent).is_sequenced is is_sequenced
