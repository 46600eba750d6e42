"""What is exported, read back with Prometheus' own parser."""

from dataclasses import replace

import pytest
from immutables import Map
from prometheus_client.parser import text_string_to_metric_families

from milena.model.errors import DiskFailedError
from milena.model.types import WallMs
from node.metrics.counts import LATENCY_BOUNDS_MS, LatencyCounts, NodeCounts, PartitionCounts
from node.metrics.exposition import (
    GROUP_PARTITIONS_MAX,
    RATE_WINDOW_MS,
    GroupSample,
    NodeMetrics,
    Rates,
    ReplicaSample,
)
from node.process.cluster_clock import ClusterClock
from raft_meta.consensus.quorum import QuorumStatus, Role
from raft_meta.machine.image import Broker, Image, Partition, Topic
from tests.support.time.fake_clock import FakeClock


def partition(leader: int | None, isr: tuple[int, ...]) -> Partition:
    return Partition(replicas=(1, 2, 3), isr=isr, leader=leader, leader_epoch=1, partition_epoch=1)


def broker(broker_id: int, *, is_fenced: bool) -> Broker:
    return Broker(
        broker_id=broker_id,
        broker_epoch=1,
        directory_id="d",
        incarnation=1,
        api_url="http://a:1",
        peer_host="a",
        peer_port=1,
        rack=None,
        is_fenced=is_fenced,
        is_draining=False,
        feature_min=1,
        feature_max=1,
    )


TOPIC = Topic(
    topic_id="a" * 32,
    name="orders",
    partition_count=4,
    replication_factor=3,
    configs=Map(),
    created_ms=WallMs(0),
)
IMAGE = Image(
    index=42,
    controller_id=1,
    topics=Map({TOPIC.topic_id: TOPIC}),
    partitions=Map(
        {
            (TOPIC.topic_id, 0): partition(1, (1, 2, 3)),
            (TOPIC.topic_id, 1): partition(1, (1,)),
            (TOPIC.topic_id, 2): partition(2, (2, 3)),
            (TOPIC.topic_id, 3): partition(None, (3,)),
        }
    ),
    brokers=Map({1: broker(1, is_fenced=False), 2: broker(2, is_fenced=True)}),
)
STATUS = QuorumStatus(role=Role.LEADER, leader_id=1, term=7, commit_index=43, applied_index=42)


class Node:
    def __init__(self) -> None:
        self.machine = FakeClock()
        self.clock = ClusterClock(self.machine, skew_ms_max=2_000, has_company=True)
        self.counts = NodeCounts()
        self.image = IMAGE
        self.through = PartitionCounts()
        self.is_disk_failed = False
        self.replicas = [
            ReplicaSample(
                topic='odd"name\\',
                partition=1,
                is_leader=True,
                log_start_offset=5,
                log_end_offset=30,
                high_watermark=20,
                stored_bytes=1234,
                counts=self.through,
            )
        ]
        self.groups: list[GroupSample] = []
        self.certificates: dict[str, float] = {}
        self.metrics = NodeMetrics(
            node_id=1,
            clock=self.clock,
            counts=self.counts,
            image=lambda: self.image,
            quorum=lambda: STATUS,
            replicas=lambda: self.replicas,
            groups=lambda: self.groups,
            is_ready=lambda: True,
            directory=self,
            certificate_expiry_s=lambda: self.certificates,
            has_process=False,
        )

    def free_bytes(self) -> int:
        if self.is_disk_failed:
            raise DiskFailedError("gone")
        return 5 << 30

    def total_bytes(self) -> int:
        return 50 << 30

    def read(self) -> dict[tuple[str, str], float]:
        """(sample name, its labels' values joined) -> value."""
        return {
            (
                sample.name,
                ",".join(value for _, value in sorted(sample.labels.items())),
            ): sample.value
            for family in text_string_to_metric_families(self.metrics.render().decode())
            for sample in family.samples
        }


def test_the_image_tells_what_is_led_under_replicated_and_leaderless():
    read = Node().read()
    assert read["milena_partitions", ""] == 4
    assert read["milena_partitions_led", ""] == 2
    assert read["milena_partitions_under_replicated", ""] == 1
    assert read["milena_partitions_under_min_isr", ""] == 1
    assert read["milena_partitions_leaderless", ""] == 1
    assert read["milena_brokers", ""] == 2
    assert read["milena_brokers_fenced", ""] == 1
    assert read["milena_controller", ""] == 1
    assert read["milena_ready", ""] == 1
    assert read["milena_metadata_index", ""] == 42


@pytest.mark.parametrize(
    ("voters", "level", "supported", "is_pending"),
    [
        pytest.param((1, 2), 3, (5, 4), True, id="all-support-more"),
        pytest.param((1, 2), 4, (5, 4), False, id="one-supports-no-more"),
        pytest.param((1, 2, 9), 3, (5, 4), False, id="a-voter-has-not-registered"),
    ],
)
def test_an_upgrade_is_pending_while_all_nodes_support_a_higher_level(
    voters, level, supported, is_pending
):
    node = Node()
    brokers = {
        number: replace(broker(number, is_fenced=False), feature_max=feature_max)
        for number, feature_max in enumerate(supported, 1)
    }
    node.image = replace(IMAGE, voters=voters, feature_level=level, brokers=Map(brokers))
    read = node.read()
    assert read["milena_raft_voters", ""] == len(voters)
    assert read["milena_feature_level", ""] == level
    assert read["milena_upgrade_pending", ""] == is_pending


def test_the_end_of_certificates_is_told_by_the_option_of_their_file():
    node = Node()
    name = "milena_tls_certificate_expiry_timestamp_seconds"
    assert not any(found == name for found, _ in node.read())
    node.certificates = {"tls_cert_file": 1.9e9, "peer_tls_ca_file": 2e9}
    read = node.read()
    assert (read[name, "tls_cert_file"], read[name, "peer_tls_ca_file"]) == (1.9e9, 2e9)


def test_the_quorum_shows_one_role():
    read = Node().read()
    assert {role: read["milena_raft_role", role.value] for role in Role} == {
        role: role is Role.LEADER for role in Role
    }
    assert read["milena_raft_term", ""] == 7
    assert read["milena_raft_commit_index", ""] == 43


def test_replicas_show_where_they_stand_whatever_their_topic_is_called():
    read = Node().read()
    labels = '1,odd"name\\'
    assert read["milena_partition_log_start_offset", labels] == 5
    assert read["milena_partition_log_end_offset", labels] == 30
    assert read["milena_partition_high_watermark", labels] == 20
    assert read["milena_partition_stored_bytes", labels] == 1234


def test_counts_of_a_partition_become_totals_and_rates():
    node = Node()
    labels = '1,odd"name\\'
    node.through.bytes_in = 1_000_000
    # What came before the first look has no known time: no rate, not an infinite one.
    assert node.read()["milena_partition_bytes_in_per_second", labels] == 0
    node.machine.jump(RATE_WINDOW_MS)
    node.through.bytes_in += 50_000
    read = node.read()
    assert read["milena_partition_bytes_in_total", labels] == 1_050_000
    assert read["milena_partition_bytes_in_per_second", labels] == 5_000


def test_a_rate_does_not_depend_on_how_often_somebody_looks():
    rates, key = Rates(), ("t", "0")
    clock = FakeClock()
    seen = []
    for look in range(60):
        seen.append(rates.observe(key, "x", look * 1_000, clock.now_ms()))
        clock.jump(1_000)
    assert seen[0] == 0
    assert set(seen[1:]) == {1_000.0}


def test_a_rate_falls_to_zero_when_nothing_happens_and_never_below():
    rates, key = Rates(), ("t", "0")
    clock = FakeClock()
    for count in (0, 500, 500, 500, 500):
        rate = rates.observe(key, "x", count, clock.now_ms())
        clock.jump(RATE_WINDOW_MS)
    assert rate == 0
    assert rates.observe(key, "x", 3, clock.now_ms()) == 0


def test_replicas_that_are_gone_are_forgotten():
    node = Node()
    node.read()
    node.replicas.clear()
    assert not any(name.startswith("milena_partition_") for name, _ in node.read())
    rates = Rates()
    rates.observe(("t", "0"), "x", 1, FakeClock().now_ms())
    rates.keep(set())
    assert rates._readings == {}


def test_latencies_are_a_histogram_in_seconds():
    node = Node()
    for ms in (0.5, 1, 3, 40_000):
        node.counts.commit_ms.observe(ms)
    read = node.read()
    assert read["milena_commit_seconds_bucket", "0.001"] == 2
    assert read["milena_commit_seconds_bucket", "0.005"] == 3
    assert read["milena_commit_seconds_bucket", "30.0"] == 3
    assert read["milena_commit_seconds_bucket", "+Inf"] == 4
    assert read["milena_commit_seconds_count", ""] == 4
    assert abs(read["milena_commit_seconds_sum", ""] - 40.0045) < 1e-9
    assert len(LatencyCounts().buckets) == len(LATENCY_BOUNDS_MS) + 1


def test_the_room_on_the_disk_is_told_unless_the_disk_fails():
    node = Node()
    assert node.read()["milena_disk_free_bytes", ""] == 5 << 30
    assert node.read()["milena_disk_size_bytes", ""] == 50 << 30
    node.is_disk_failed = True
    assert not any(name.startswith("milena_disk") for name, _ in node.read())


def test_two_nodes_in_one_process_share_nothing():
    one, other = Node(), Node()
    one.counts.isr_shrinks = 3
    assert one.read()["milena_isr_shrinks_total", ""] == 3
    assert other.read()["milena_isr_shrinks_total", ""] == 0


def test_the_process_is_part_of_it():
    node = Node()
    metrics = NodeMetrics(
        node_id=1,
        clock=node.clock,
        counts=node.counts,
        image=Image,
        quorum=lambda: STATUS,
        replicas=list,
        groups=list,
        is_ready=lambda: False,
        directory=node,
        certificate_expiry_s=dict,
    )
    assert b"process_resident_memory_bytes" in metrics.render()


def test_a_wrong_clock_is_told():
    node = Node()
    found = node.read()
    assert (found["milena_clock_known", ""], found["milena_clock_out_of_bounds", ""]) == (0, 0)
    assert ("milena_clock_offset_ms", "") not in found
    ahead_ms = node.machine.wall_ms() - node.machine.now_ms() - 5_000
    node.clock.hear(node.machine.now_ms(), node.machine.now_ms(), ahead_ms)
    found = node.read()
    assert (found["milena_clock_known", ""], found["milena_clock_out_of_bounds", ""]) == (1, 1)
    assert found["milena_clock_offset_ms", ""] == 5_000


def test_requests_of_kafka_clients_are_counted_by_api_and_code():
    node = Node()
    node.counts.kafka.requests.update({("Produce", 0): 3, ("Fetch", 6): 1})
    node.counts.kafka.connections, node.counts.kafka.refused_frames = 2, 4
    node.counts.kafka.forwarded, node.counts.kafka.listeners = 5, 1
    node.counts.kafka.equal_addresses = 2
    read = node.read()
    assert read["milena_kafka_requests_total", "Produce,0"] == 3
    assert read["milena_kafka_requests_total", "Fetch,6"] == 1
    assert read["milena_kafka_listeners", ""] == 1
    assert read["milena_kafka_equal_addresses", ""] == 2
    assert read["milena_kafka_connections", ""] == 2
    assert read["milena_kafka_refused_frames_total", ""] == 4
    assert read["milena_kafka_forwarded_requests_total", ""] == 5


def lag_of(
    group: str, partition: int, lag: int | None, *, is_age_known: bool = True
) -> GroupSample:
    """A group that is as many seconds late as records."""
    return GroupSample(
        group=group,
        topic="orders",
        partition=partition,
        committed_offset=7,
        lag=lag,
        lag_ms=lag * 1000 if is_age_known and lag is not None else None,
    )


def test_a_groups_lag_is_exported_for_each_partition_and_as_a_sum():
    node = Node()
    node.groups = [lag_of("g", 0, 3), lag_of("g", 1, 4), lag_of("done", 0, 0)]
    read = node.read()
    assert read["milena_group_lag", "g,0,orders"] == 3
    assert read["milena_group_committed_offset", "g,1,orders"] == 7
    assert read["milena_group_lag", "done,0,orders"] == 0
    assert read["milena_group_lag_seconds", "g,1,orders"] == 4
    assert read["milena_group_lag_seconds", "done,0,orders"] == 0
    assert read["milena_group_lag_seconds_max", "g"] == 4
    assert read["milena_group_lag_sum", "g"] == 7
    assert read["milena_group_lag_unknown", "g"] == 0


def test_a_lag_that_is_not_known_is_no_zero():
    node = Node()
    node.groups = [lag_of("g", 0, None), lag_of("g", 1, 4)]
    read = node.read()
    assert ("milena_group_lag", "g,0,orders") not in read
    assert read["milena_group_committed_offset", "g,0,orders"] == 7
    assert (read["milena_group_lag_sum", "g"], read["milena_group_lag_unknown", "g"]) == (4, 1)


def test_an_age_that_is_not_known_is_no_zero_and_counts_as_unknown():
    node = Node()
    node.groups = [lag_of("g", 0, 9, is_age_known=False), lag_of("g", 1, 4), lag_of("h", 0, None)]
    read = node.read()
    assert read["milena_group_lag", "g,0,orders"] == 9
    assert ("milena_group_lag_seconds", "g,0,orders") not in read
    assert read["milena_group_lag_seconds_max", "g"] == 4
    assert read["milena_group_lag_unknown", "g"] == 1
    assert ("milena_group_lag_seconds_max", "h") not in read


def test_of_too_many_partitions_those_with_the_largest_lag_are_exported_and_the_sum_has_all():
    node = Node()
    node.groups = [lag_of("g", number, number) for number in range(GROUP_PARTITIONS_MAX + 5)]
    read = node.read()
    assert ("milena_group_lag", "g,4,orders") not in read
    assert read["milena_group_lag", "g,5,orders"] == 5
    assert sum(name == "milena_group_lag_seconds" for name, _ in read) == GROUP_PARTITIONS_MAX
    assert read["milena_group_lag_seconds_max", "g"] == GROUP_PARTITIONS_MAX + 4
    assert read["milena_group_lag_sum", "g"] == sum(range(GROUP_PARTITIONS_MAX + 5))


def test_without_partitions_a_group_has_its_sum_alone():
    node = Node()
    node.groups = [lag_of("g", 0, 3)]
    text = node.metrics.render(has_partitions=False).decode()
    assert 'milena_group_lag_sum{group="g"} 3.0' in text
    assert "milena_group_lag{" not in text
