"""Kafka's codes, and those of errors."""

import pytest
from kafka import errors as kafka_errors

from http_api.protocol.errors import kafka_code_of
from http_api.protocol.kafka_codes import KafkaCode
from milena.model import errors as e

FORMER_NAMES = {
    "NOT_LEADER_FOR_PARTITION": "NOT_LEADER_OR_FOLLOWER",
    "MESSAGE_SIZE_TOO_LARGE": "MESSAGE_TOO_LARGE",
    "INVALID_REPLICATION_ASSIGNMENT": "INVALID_REPLICA_ASSIGNMENT",
}
"""Names that kafka-python has in place of Kafka's."""
UNKNOWN = {KafkaCode.INVALID_REGULAR_EXPRESSION: 128}
"""Codes that kafka-python does not have, and their numbers in Kafka's protocol guide."""


def test_the_codes_have_the_names_of_kafka() -> None:
    known = {
        kind.errno: kind.message
        for kind in vars(kafka_errors).values()
        if isinstance(kind, type) and hasattr(kind, "errno") and hasattr(kind, "message")
    }
    for code in KafkaCode:
        if code in UNKNOWN:
            assert code == UNKNOWN[code]
        elif code > 0:
            name = FORMER_NAMES.get(known[code], known[code])
            assert name in {code.name, code.name.removesuffix("_EXCEPTION")}, code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (e.FateUnknownError, KafkaCode.REQUEST_TIMED_OUT),
        (e.NotLeaderError, KafkaCode.NOT_LEADER_OR_FOLLOWER),
        (e.UnavailableError, KafkaCode.LEADER_NOT_AVAILABLE),
        (e.ConflictError, KafkaCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_the_code_decides_what_a_client_does(error: type[e.MilenaError], code: KafkaCode) -> None:
    assert kafka_code_of(error("a sentence")) == code
