"""The bare listener of Kafka's protocol: it answers in order, gives offsets, and refuses a damaged batch."""

import asyncio
from collections.abc import Iterable
from struct import Struct

import pytest

from loadtest.bench.clients.http_load import HttpLoadError
from loadtest.bench.clients.kafka_clients import check_produced, produce_frame
from loadtest.bench.clients.kafka_wire import KafkaFields, frame, int32, is_whole, text
from loadtest.bench.servers.bare_kafka import Listener

PORT = 4242


class Wire(asyncio.Transport):
    """Keeps what was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.sent += b"".join(list_of_data)

    def answers(self) -> list[bytes]:
        found, rest = [], self.sent
        while rest:
            assert is_whole(rest)
            size = 4 + int.from_bytes(rest[:4], "big")
            found.append(rest[:size])
            rest = rest[size:]
        return found


def exchange(*pieces: bytes) -> list[bytes]:
    Listener.ends, Listener.port = {}, PORT
    listener, wire = Listener(), Wire()
    listener.connection_made(wire)
    for piece in pieces:
        listener.data_received(piece)
    return wire.answers()


def offset_of(answer: bytes) -> int:
    check_produced(answer, "t")
    offset: int = Struct(">q").unpack_from(answer, 4 + 4 + 4 + 2 + 1 + 4 + 4 + 2)[0]
    return offset


def test_batches_get_offsets_in_order_also_if_they_arrive_in_pieces() -> None:
    wanted = produce_frame("t", records=3) + produce_frame("t", records=2)
    whole = exchange(wanted)
    assert [offset_of(answer) for answer in whole] == [0, 3]
    assert exchange(*(wanted[at : at + 7] for at in range(0, len(wanted), 7))) == whole


def test_a_damaged_batch_is_refused() -> None:
    damaged = bytearray(produce_frame("t", records=1))
    damaged[-1] ^= 1
    (answer,) = exchange(bytes(damaged))
    with pytest.raises(HttpLoadError, match="error code 2"):
        check_produced(answer, "t")


def test_every_topic_is_there_and_led_by_the_listener() -> None:
    (answer,) = exchange(frame(3, 4, int32(1) + text("t") + b"\1"))
    found = KafkaFields(answer)
    assert (found.int32(), found.int32(), found.int32()) == (0, 1, 1)
    assert (found.text(), found.int32(), found.int16()) == ("127.0.0.1", PORT, -1)
    assert (found.text(), found.int32(), found.int32()) == ("", 1, 1)
    assert (found.int16(), found.text()) == (0, "t")


def test_a_client_that_asks_in_a_newer_version_is_told_which_there_are() -> None:
    answers = exchange(frame(18, 3, b""), frame(18, 0, b""))
    codes = [KafkaFields(answer).int16() for answer in answers]
    assert codes == [35, 0]
    assert answers[0][10:] == answers[1][10:]
