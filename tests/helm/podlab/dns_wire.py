"""DNS packets: a question out of one, an answer into one. Pure; one question a packet, as resolvers ask.

Source: RFC 1035, sections 4.1 and 3.2.
"""

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

TYPE_A = 1
HEADER = struct.Struct(">HHHHHH")
FLAGS_ANSWER = 0x8480
"""A response, authoritative, with recursion said to be available."""

RECURSION_DESIRED = 0x0100
NO_SUCH_NAME = 3
TTL_S = 5
POINTER_TO_QUESTION = 0xC000 | HEADER.size


class DnsFormatError(Exception):
    """The packet is no question that can be answered."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: an identifier to repeat, flags, a name in lower case without the last dot, a record type."""

    query_id: int
    flags: int
    name: str
    record_type: int
    wire: bytes


def parse_question(packet: bytes) -> Question:
    """The question of a query.

    Raises:
        DnsFormatError: It is cut short, compressed, or asks not exactly one thing.
    """
    try:
        query_id, flags, questions, *_ = HEADER.unpack_from(packet)
        if questions != 1:
            raise DnsFormatError(f"{questions} questions")
        at, labels = HEADER.size, []
        while size := packet[at]:
            if size > 63:
                raise DnsFormatError("a compressed question")
            labels.append(packet[at + 1 : at + 1 + size].decode("ascii").lower())
            at += 1 + size
        (record_type,) = struct.unpack_from(">H", packet, at + 1)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise DnsFormatError("cut short or not ASCII") from error
    return Question(query_id, flags, ".".join(labels), record_type, packet[HEADER.size : at + 5])


def encode_answer(question: Question, addresses: Sequence[str] | None) -> bytes:
    """The response: None means that there is no such name; other types than A are answered with nothing."""
    given = addresses if addresses and question.record_type == TYPE_A else ()
    code = NO_SUCH_NAME if addresses is None else 0
    flags = FLAGS_ANSWER | (question.flags & RECURSION_DESIRED) | code
    records = b"".join(
        struct.pack(">HHHIH4s", POINTER_TO_QUESTION, TYPE_A, 1, TTL_S, 4, socket.inet_aton(address))
        for address in given
    )
    return HEADER.pack(question.query_id, flags, 1, len(given), 0, 0) + question.wire + records
