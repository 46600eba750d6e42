"""Checks of a record inside of ``send``, so that its caller gets the error instead of a failed delivery (pure)."""

from collections.abc import Sequence

from milena.errors import BadRecordError, RecordTooLargeError
from milena.model.batch.timestamps import TimestampBounds
from milena.model.columns import HEADERS_PER_RECORD_MAX, Headers
from milena.records import Acks, is_whole


def checked_headers(headers: Sequence[tuple[str, bytes | None]]) -> Headers:
    """Return the headers as a list of pairs, checked.

    Raises:
        BadRecordError: too many headers, or not pairs of text and bytes (or None).
    """
    if not isinstance(headers, Sequence):
        raise BadRecordError(
            f"headers={headers!r}: give pairs of a name and bytes, as [('trace', b'17')]"
        )
    if len(headers) > HEADERS_PER_RECORD_MAX:
        raise BadRecordError(f"a record has at most {HEADERS_PER_RECORD_MAX} headers")
    checked: Headers = []
    for header in headers:
        if not _is_pair(header):
            raise BadRecordError(
                f"header {header!r}: give pairs of a name and bytes, as [('trace', b'17')]"
            )
        name, value = header
        if not _is_header(name, value):
            raise BadRecordError(f"header {name!r}: a header is a pair of text and bytes or None")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise BadRecordError(f"header {name!r}: the name is not valid Unicode") from error
        checked.append((name, value))
    return checked


def _is_pair(header: object) -> bool:
    # If the caller passed a dict, ``header`` is a name. A name of two letters would unpack like a pair.
    return isinstance(header, list | tuple) and len(header) == 2


def _is_header(name: object, value: object) -> bool:
    return isinstance(name, str) and (value is None or isinstance(value, bytes))


def check_partition(partition: int) -> None:
    """Refuse a value that cannot be the number of a partition.

    Raises:
        BadRecordError: the value is no whole number. Whether the topic has the partition is checked later.
    """
    if not is_whole(partition):
        raise BadRecordError(f"partition={partition!r} must be a whole number, or None")


def check_timestamp(timestamp_ms: int) -> None:
    """Refuse a value that is no timestamp.

    Raises:
        BadRecordError: the value is no whole number, or before 1970.
    """
    if not is_whole(timestamp_ms):
        raise BadRecordError(
            f"timestamp_ms={timestamp_ms!r} must be a whole number of ms since 1970"
        )
    if timestamp_ms < 0:
        raise BadRecordError(f"timestamp_ms={timestamp_ms} must be ms since 1970")


def check_bounds(timestamp_ms: int, bounds: TimestampBounds, wall_ms: int) -> None:
    """Refuse a timestamp outside of the topic's bounds, because a node would refuse its whole batch.

    Raises:
        BadRecordError: the timestamp is outside of the bounds, by this machine's clock.
    """
    earliest, latest = bounds.range_at(wall_ms)
    if not earliest <= timestamp_ms <= latest:
        raise BadRecordError(bounds.refusal(timestamp_ms, wall_ms).message)


def check_condition(if_match: int, partition: int | None, acks: Acks) -> None:
    """Refuse a condition that no node can check.

    Raises:
        BadRecordError: ``if_match`` is no offset, no partition is named, or ``acks=0`` gets no response.
    """
    if not is_whole(if_match) or if_match < 0:
        raise BadRecordError(f"if_match={if_match!r} is not an offset")
    if partition is None:
        raise BadRecordError("if_match is the end of one partition: give partition, or a key")
    if acks == 0:
        raise BadRecordError(
            "with acks=0 no response says whether if_match held: use acks='all' or 1"
        )


def keyless(topic: str, place: int | None = None) -> BadRecordError:
    """Return the error for a record without a key, before a node refuses its batch.

    ``place`` is the index of the record if several are sent together.
    """
    which = "the record" if place is None else f"record {place}"
    return BadRecordError(
        f"{which} has no key, but {topic} is compacted: it keeps the last record of each key; give every record a key, "
        "or set the topic's cleanup.policy to delete"
    )


def too_large(
    topic: str, size: int, record_bytes_max: int, buffer_bytes: int
) -> RecordTooLargeError:
    """Return the error for a record that is larger than the buffer, or than a batch of the topic may be."""
    if size > buffer_bytes:
        return RecordTooLargeError(
            f"a record of {size} bytes does not fit into buffer_bytes={buffer_bytes}"
        )
    return RecordTooLargeError(
        f"a record of {size} bytes is above what {topic} takes ({record_bytes_max}); "
        "send less, or raise the topic's max.message.bytes"
    )
