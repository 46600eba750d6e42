"""v2: produce, for small requests whose head repeats (``http_api.quick.lane``)."""

from collections.abc import Mapping, Sequence

from http_api.lookup import parse_partition
from http_api.media import metadata_type, produce_format
from http_api.ports import Ports
from http_api.v2.produce import (
    DECODERS,
    Decoder,
    ProduceOptions,
    encode_offsets,
    parse_options,
    resolve_partitions,
)
from milena.model.requests import Acks, ProduceRequest, Queued
from milena.model.turns import at_once


class QuickProduce:
    """Small JSON requests of one head, on their way to one topic (``http_api.quick.lane``)."""

    def __init__(
        self,
        ports: Ports,
        topic: str,
        partition: int | None,
        *,
        decode: Decoder,
        options: ProduceOptions,
        content_type: str,
    ) -> None:
        limits = ports.limits
        self.content_type = content_type
        self._ports = ports
        self._topic = topic
        self._partition = partition
        self._decode = decode
        self._acks = options.acks
        self._timeout_ms = options.wait_ms(limits)
        self._records_max = limits.records_per_request_max

    def start(self, body: bytes) -> Queued | None:
        """Queue the records with those of others."""
        records = at_once(self._decode(body, records_max=self._records_max))
        request = ProduceRequest(
            topic=self._topic,
            records=records,
            acks=self._acks,
            timeout_ms=self._timeout_ms,
            partition=self._partition,
            idempotency=None,
        )
        if records.partitions is not None:
            request = resolve_partitions(request, records.partitions)
        return self._ports.produce.queue(request)

    def encode(self, partition: int, offsets: Sequence[int | None]) -> bytes:
        """The receipts."""
        return encode_offsets(partition, offsets)


def prepare_to_topic(
    ports: Ports, names: Mapping[str, str], raw_query: str, headers: Mapping[str, str]
) -> QuickProduce | None:
    """What a head says, unless it says that its records are no JSON or that nobody waits for them.

    Raises:
        MilenaError: it is at fault.
    """
    return _prepare(ports, names["topic"], None, raw_query, headers)


def prepare_to_partition(
    ports: Ports, names: Mapping[str, str], raw_query: str, headers: Mapping[str, str]
) -> QuickProduce | None:
    """Likewise.

    Raises:
        MilenaError: it is at fault.
    """
    return _prepare(ports, names["topic"], parse_partition(names), raw_query, headers)


def _prepare(
    ports: Ports,
    topic: str,
    partition: int | None,
    raw_query: str,
    headers: Mapping[str, str],
) -> QuickProduce | None:
    decode = DECODERS.get(produce_format(headers.get("content-type", "")))
    options = parse_options(raw_query)
    if decode is None or options.acks is Acks.NONE:
        return None
    return QuickProduce(
        ports,
        topic,
        partition,
        decode=decode,
        options=options,
        content_type=metadata_type(headers.get("accept", "")),
    )
