"""Bits that change on the leader's disk: a Kafka client that checks no checksums gets every record as it was."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.cluster.local_cluster import LocalCluster
from tests.integration.kafka.test_kafka_clients import Sent, brokers, consumed
from tests.support.clusters.live_cluster import (
    call,
    create_topic,
    eventually,
    leader_of,
    ok,
    running_cluster,
    wait_in_sync,
    write,
)

pytestmark = pytest.mark.integration

VALUES = [f"{number:04d}-" + "x" * 900 for number in range(300)]


@pytest.fixture(scope="module")
def unscrubbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Nothing is checked but what a reader meets."""
    directory = tmp_path_factory.mktemp("kafka-damage")
    with running_cluster(directory, kafka_listen="127.0.0.1:0", scrub_bytes_per_s=0) as found:
        eventually(lambda: len(brokers(found)) == 3)
        yield found


def flip(path: Path, rng: random.Random) -> None:
    """Change one bit in the payload of a batch (docs/record-batch.md: its size, and the size of its header)."""
    content = bytearray(path.read_bytes())
    batches, at = [], 0
    while size := int.from_bytes(content[at : at + 4], "big"):
        batches.append((at + int.from_bytes(content[at + 5 : at + 7], "big"), at + size))
        at += size
    place = rng.randrange(*batches[len(batches) // 2])
    content[place] ^= 1 << rng.randrange(8)
    with path.open("r+b") as file:
        file.seek(place)
        file.write(content[place : place + 1])


@pytest.mark.parametrize("writer", ["http", "kafka", "append-time"])
def test_every_record_is_read_as_it_was_written(unscrubbed: LocalCluster, writer: str) -> None:
    node = unscrubbed.nodes[0]
    append_time = {"message_timestamp_type": "LogAppendTime"} if writer == "append-time" else {}
    topic = create_topic(node, f"damaged-{writer}", segment_bytes=64 << 10, **append_time)
    if writer == "http":
        for value in VALUES:
            ok(write(node, topic, value))
    else:
        sent = Sent(unscrubbed, **{"linger.ms": 0, "batch.num.messages": 5})
        for value in VALUES:
            sent.send(topic, value)
        sent.finish()
    wait_in_sync(unscrubbed, topic)
    leader = leader_of(unscrubbed, topic)
    topics = ok(call(node, "GET /metadata"))["topics"]
    topic_id = next(found["topic_id"] for found in topics if found["name"] == topic)
    segments = sorted((leader.data_dir / "topics" / topic_id / "0").glob("*.log"))
    rng = random.Random(writer)
    for segment in segments[1:4:2]:
        flip(segment, rng)
    messages = consumed(unscrubbed, topic, len(VALUES))
    found_values = [message.value().decode() for message in messages]
    assert [json.loads(v) if writer == "http" else v for v in found_values] == VALUES
    assert leader_of(unscrubbed, topic) is not leader
    assert "Traceback" not in leader.log_path.read_text()
