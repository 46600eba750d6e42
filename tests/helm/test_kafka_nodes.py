"""Kafka clients and the chart, on real nodes: they write and read by the pods' names, and by one address for all."""

import sys
from collections.abc import Iterator

import pytest

from tests.helm.podlab.release import SET, Release, milena_lab

pytestmark = [pytest.mark.integration, pytest.mark.long]

OUTSIDE = f"{SET}-external:9094"
"""The service for clients outside. It takes the place of a load balancer here, under the name that it has inside."""
INSTALL_S = 240
PROGRAM = """
import sys
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

servers = {"bootstrap.servers": sys.argv[1]}
topic = sys.argv[2]
admin = AdminClient(servers)
admin.create_topics([NewTopic(topic, 6, 3)])[topic].result(60)
found = admin.list_topics(timeout=60).brokers.values()
print(*sorted(f"{broker.host}:{broker.port}" for broker in found))
producer = Producer(servers)
for number in range(60):
    producer.produce(topic, str(number), partition=number % 6)
assert producer.flush(60) == 0
consumer = Consumer({**servers, "group.id": topic, "auto.offset.reset": "earliest"})
consumer.subscribe([topic])
print(sorted(int(consumer.poll(60).value()) for _ in range(60)) == list(range(60)))
consumer.close()
"""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    with milena_lab(tmp_path_factory.mktemp("kafka")) as running:
        running.helm(
            "install",
            *("--set", "kafka.enabled=true"),
            *("--set", "kafka.oneAddress=true"),
            *("--set", f"kafka.advertise={OUTSIDE}"),
            *("--set", "externalAccess.enabled=true"),
            *("--set", "externalAccess.type=NodePort"),
            *("--set", "auth.enabled=false"),
            timeout_s=INSTALL_S,
        )
        yield running


def written_and_read(release: Release, address: str, topic: str) -> list[str]:
    """Let a client of the address write to and read from all partitions; return the brokers' addresses."""
    done = release.lab.execute(f"{SET}-0", sys.executable, "-c", PROGRAM, address, topic)
    assert done, done.out + done.err
    brokers, is_whole = done.out.splitlines()
    assert is_whole == "True"
    return brokers.split()


@pytest.mark.parametrize("host", [SET, f"{SET}-2.{SET}-headless"], ids=["service", "pod"])
def test_a_client_inside_reaches_each_pod_by_its_name(release: Release, host: str) -> None:
    brokers = written_and_read(release, f"{host}:9092", f"inside-{len(host)}")
    assert [one.split(".")[0] for one in brokers] == [f"{SET}-{n}" for n in range(3)]
    assert all(one.endswith(":9092") for one in brokers)


def test_a_client_outside_reaches_all_nodes_by_one_address(release: Release) -> None:
    assert written_and_read(release, OUTSIDE, "outside") == [OUTSIDE] * 3
