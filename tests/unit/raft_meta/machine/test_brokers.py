"""Where Kafka clients reach brokers; what else commands do to brokers is in the golden scripts."""

import msgpack  # type: ignore[import-untyped]  # ships no type hints
import pytest

from milena.model.errors import FeatureLevelError, InvalidRequestError, StaleBrokerEpochError
from raft_meta.machine import brokers, codec, invariants
from raft_meta.machine import commands as c
from raft_meta.machine.copies import replace
from raft_meta.machine.image import Image
from tests.support.machine.images import Cluster, register

LOCAL = (("plain", "127.0.0.1", 9092),)


def told(
    image: Image, *addresses: tuple[str, str, int], broker_id: int = 1, epoch: int | None = None
) -> c.SetKafkaAddresses:
    known = image.brokers[broker_id].broker_epoch
    return c.SetKafkaAddresses(
        broker_id=broker_id,
        broker_epoch=known if epoch is None else epoch,
        addresses=addresses,
    )


def registered() -> Cluster:
    cluster = Cluster(level=brokers.KAFKA_LEVEL)
    cluster.do(register(1))
    return cluster


def test_a_broker_tells_where_kafka_clients_reach_it_until_it_registers_again() -> None:
    cluster = registered()
    assert cluster.image.brokers[1].kafka_address("plain") is None
    external = ("external", "node-1.example.org", 9092)
    assert cluster.do(told(cluster.image, external, *LOCAL)).error is None
    broker = cluster.image.brokers[1]
    assert broker.kafka_address("plain") == ("127.0.0.1", 9092)
    assert broker.kafka_address("external") == ("node-1.example.org", 9092)
    assert cluster.do(told(cluster.image)).error is None
    assert cluster.image.brokers[1].kafka_addresses == ()
    cluster.do(told(cluster.image, *LOCAL))
    cluster.do(register(1, last=broker.broker_epoch))
    assert cluster.image.brokers[1].kafka_addresses == ()


def test_the_address_of_an_earlier_registration_is_refused() -> None:
    cluster = registered()
    late = told(cluster.image, *LOCAL, epoch=cluster.image.brokers[1].broker_epoch - 1)
    assert isinstance(cluster.do(late).error, StaleBrokerEpochError)


@pytest.mark.parametrize(
    "addresses",
    [
        (("plain", "a", 1), ("plain", "b", 2)),
        (("z", "a", 1), ("a", "b", 2)),
        (("plain", "", 1),),
        (("", "a", 1),),
        (("plain", "a", 0),),
        (("plain", "a", 65_536),),
        (("plain", "a" * 256, 1),),
        tuple((f"l{number}", "a", 1) for number in range(9)),
    ],
)
def test_addresses_are_bounded_and_ordered(addresses: tuple[tuple[str, str, int], ...]) -> None:
    cluster = registered()
    assert isinstance(cluster.do(told(cluster.image, *addresses)).error, InvalidRequestError)
    assert cluster.image.brokers[1].kafka_addresses == ()


def test_a_broker_without_addresses_has_the_bytes_of_the_level_before() -> None:
    before = Cluster(level=brokers.KAFKA_LEVEL - 1)
    before.do(register(1))
    now = registered()
    bytes_of = [
        b"".join(codec.encode_image(replace(image, feature_level=1)))
        for image in (before.image, now.image)
    ]
    assert bytes_of[0] == bytes_of[1]
    assert isinstance(before.do(told(before.image, *LOCAL)).error, FeatureLevelError)
    now.do(told(now.image, *LOCAL))
    assert codec.decode_image(codec.encode_image(now.image)) == now.image
    early = replace(now.image, feature_level=brokers.KAFKA_LEVEL - 1)
    assert any("Kafka addresses" in problem for problem in invariants.violations(early))


def test_the_command_is_a_promise() -> None:
    cluster = registered()
    envelope = cluster.envelope(told(cluster.image, *LOCAL))
    row = msgpack.unpackb(codec.encode_envelope(envelope))
    assert row[5:] == [
        42,
        [1, cluster.image.brokers[1].broker_epoch, [["plain", "127.0.0.1", 9092]]],
    ]
    assert codec.decode_envelope(codec.encode_envelope(envelope)) == envelope
