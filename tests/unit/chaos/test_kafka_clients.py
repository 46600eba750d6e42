"""How a Kafka producer takes the errors of its transactions, and which program runs where."""

import asyncio

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.chaos.history import Outcome
from tests.chaos.kafka_clients import KafkaProducer, KafkaRefusedError
from tests.chaos.setup import Client, roles_of

OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN
AGAIN = KafkaError(KafkaError._TIMED_OUT, "late", False, True, False)
REFUSED = KafkaError(KafkaError._STATE, "refused", False, False, True)
FENCED = KafkaError(KafkaError._FENCED, "fenced", True, False, False)
HTTP, KAFKA = Client.HTTP, Client.KAFKA


def producer_of(*errors: KafkaError | None) -> KafkaProducer:
    """A producer whose commits end so, one after the other; the last end stays."""
    client = KafkaProducer("127.0.0.1:1", **{"transactional.id": "x"})
    left = list(errors)

    def commit(_: float) -> None:
        error = left.pop(0) if len(left) > 1 else left[0]
        if error is not None:
            raise KafkaException(error)

    class Committing:
        commit_transaction = staticmethod(commit)
        purge = staticmethod(lambda: None)
        flush = staticmethod(lambda _: 0)

    client._producer = Committing()
    return client


@pytest.mark.parametrize(
    ("errors", "patience_s", "outcome"),
    [
        ([None], 9, OK),
        ([AGAIN, AGAIN, None], 9, OK),
        ([REFUSED], 9, FAILED),
        ([AGAIN, REFUSED], 9, FAILED),
        # A fenced producer does not learn what its lost request did.
        ([FENCED], 9, UNKNOWN),
        ([AGAIN], -1, UNKNOWN),
    ],
)
def test_a_commit_is_repeated_while_its_outcome_is_uncertain(errors, patience_s, outcome):
    client = producer_of(*errors)
    assert asyncio.run(client.commit(patience_s))[0] is outcome
    client.close()


def test_a_client_that_is_closed_gives_up():
    client = producer_of(AGAIN)
    client._is_closing = True
    with pytest.raises(KafkaRefusedError):
        client._retry(client._producer.commit_transaction, 60)
    client.close()


def test_a_record_that_cannot_be_queued_has_failed_for_certain():
    client = KafkaProducer("127.0.0.1:1", **{"queue.buffering.max.messages": 1})
    client._is_closing = True
    receipts = asyncio.run(client.write("t", 0, [("k", 1), ("k", 2), ("k", 3)]))
    assert [one.outcome for one in receipts] == [UNKNOWN, FAILED, FAILED]
    client.close()


@pytest.mark.parametrize("clients", [(HTTP,), (KAFKA,), (HTTP, KAFKA)])
def test_each_program_has_one_client(clients):
    shares = [roles_of(client, clients) for client in (HTTP, KAFKA)]
    assert sorted(n for one in shares for n in one.sessions) == [0, 1]
    assert sorted(t for one in shares for t in one.topics) == ["left", "right"]
    assert sorted(n for one in shares for n in one.committed_readers) == [0, 1, 2]
    assert sorted(n for one in shares for n in one.uncommitted_readers) == [0]
    if len(clients) > 1:
        assert all(one.sessions and one.topics and one.committed_readers for one in shares)
