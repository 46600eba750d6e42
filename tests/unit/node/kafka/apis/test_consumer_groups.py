"""ConsumerGroupHeartbeat and ConsumerGroupDescribe, as a client sends them to a group's coordinator.

They pass through ``node.groups.server_members``.
"""

import uuid
from typing import Any

import pytest

from http_api.ports.groups import Heartbeat
from http_api.protocol.kafka_codes import KafkaCode
from node.kafka.apis.consumer_groups import ASSIGNORS
from tests.support.clusters.kafka_clients import KafkaClient, client_of
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.time.virtual_time import LoopClock, virtual
from tests.unit.node.kafka.apis.test_group_offsets import commit, fetch
from tests.unit.node.kafka.apis.test_groups import coordinator, join

PARTITIONS = (1, 2, 3)
ALL = [("t", number) for number in range(12)]


async def beat(client: KafkaClient, *, version: int = 1, **fields: Any) -> Any:
    """Send a heartbeat that joins, unless the fields say otherwise."""
    is_join = not fields.get("member_epoch", 0)
    first: dict[str, Any] = {
        "rebalance_timeout_ms": 10_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }
    return await client.call(
        68,
        version,
        **{"group_id": "g", "member_id": "m1", "member_epoch": 0}
        | (first if is_join else {})
        | fields,
    )


def topic_id(cluster: Cluster, name: str = "t") -> uuid.UUID:
    return uuid.UUID(hex=cluster.nodes[1].metadata.image.topic_ids[name])


def assigned(cluster: Cluster, answer: Any) -> list[tuple[str, int]]:
    """The partitions of a response, by name."""
    topics = cluster.nodes[1].metadata.image.topics
    return [
        (topics[one.topic_id.hex].name, number)
        for one in answer.assignment.topic_partitions
        for number in one.partitions
    ]


def owning(cluster: Cluster, parts: list[tuple[str, int]]) -> dict[str, Any]:
    """The field by which a member says what it works on."""
    names = sorted({name for name, _ in parts})
    return {
        "topic_partitions": [
            {
                "topic_id": topic_id(cluster, name),
                "partitions": [number for topic, number in parts if topic == name],
            }
            for name in names
        ]
    }


async def started(cluster: Cluster) -> KafkaClient:
    await cluster.create("t", *[PARTITIONS] * len(ALL))
    return await coordinator(cluster)


@pytest.mark.parametrize("version", [0, 1])
@virtual
async def test_two_members_share_a_topic_step_by_step(version: int) -> None:
    async with cluster_of() as cluster:
        client = await started(cluster)
        first = await beat(client, version=version)
        assert (first.error_code, first.member_id, first.member_epoch) == (0, "m1", 1)
        assert first.heartbeat_interval_ms == 5_000
        assert assigned(cluster, first) == ALL
        second = await beat(client, version=version, member_id="m2")
        assert assigned(cluster, second) == []
        # The first one must give up half, and the second one gets it only then.
        told = await beat(client, version=version, member_epoch=1)
        kept = assigned(cluster, told)
        assert (told.member_epoch, len(kept)) == (1, len(ALL) // 2)
        mine = await beat(client, version=version, member_id="m2", member_epoch=second.member_epoch)
        assert assigned(cluster, mine) == []
        await beat(client, version=version, member_epoch=1, **owning(cluster, kept))
        got = await beat(client, version=version, member_id="m2", member_epoch=mine.member_epoch)
        assert sorted(kept + assigned(cluster, got)) == ALL
        left = await beat(client, version=version, member_epoch=-1)
        assert (left.error_code, left.member_epoch, left.assignment) == (0, -1, None)


@virtual
async def test_a_member_without_an_id_gets_one_in_version_0_only() -> None:
    async with cluster_of() as cluster:
        client = await started(cluster)
        joined = await beat(client, version=0, member_id="")
        assert joined.error_code == 0
        assert joined.member_id
        refused = await beat(client, version=1, member_id="")
        assert refused.error_code == KafkaCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"server_assignor": "best"}, KafkaCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "(a"}, KafkaCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": r"(a)\1"}, KafkaCode.INVALID_REGULAR_EXPRESSION),
        ({"group_id": ""}, KafkaCode.INVALID_REQUEST),
        ({"group_id": "x" * 300}, KafkaCode.INVALID_REQUEST),
        ({"instance_id": ""}, KafkaCode.INVALID_REQUEST),
        ({"member_epoch": -2}, KafkaCode.INVALID_REQUEST),
        ({"member_epoch": -3, "instance_id": "i"}, KafkaCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, KafkaCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, KafkaCode.INVALID_REQUEST),
        ({"topic_partitions": None}, KafkaCode.INVALID_REQUEST),
        (
            {"topic_partitions": [{"topic_id": uuid.uuid4(), "partitions": [0]}]},
            KafkaCode.INVALID_REQUEST,
        ),
        ({"member_epoch": 4}, KafkaCode.UNKNOWN_MEMBER_ID),
    ],
)
@virtual
async def test_a_heartbeat_that_cannot_be_is_refused_with_a_sentence(
    fields: dict[str, Any], code: KafkaCode
) -> None:
    async with cluster_of() as cluster:
        client = await started(cluster)
        refused = await beat(client, **fields)
        assert refused.error_code == code
        assert refused.error_message.endswith((".", "in", "nothing", "answer", "1000"))
        assert refused.assignment is None


@virtual
async def test_an_epoch_that_no_response_had_is_fenced() -> None:
    async with cluster_of() as cluster:
        client = await started(cluster)
        await beat(client)
        assert (await beat(client, member_epoch=2)).error_code == KafkaCode.FENCED_MEMBER_EPOCH


@virtual
async def test_only_the_coordinator_takes_heartbeats() -> None:
    async with cluster_of() as cluster:
        await started(cluster)
        codes = [(await beat(client_of(node))).error_code for node in cluster.nodes.values()]
        assert sorted(codes) == [0, KafkaCode.NOT_COORDINATOR, KafkaCode.NOT_COORDINATOR]


@virtual
async def test_a_subscription_changes_by_names_and_by_pattern_apart() -> None:
    async with cluster_of() as cluster:
        client = await started(cluster)
        await cluster.create("u1", PARTITIONS)
        await cluster.create("u2", PARTITIONS)

        async def epoch_after(**fields: Any) -> list[tuple[str, int]]:
            nonlocal epoch
            # Each step gives up everything first, so that the next assignment comes at once.
            found = await beat(client, member_epoch=epoch, **fields)
            owned = assigned(cluster, found)
            found = await beat(client, member_epoch=found.member_epoch, **owning(cluster, owned))
            epoch = found.member_epoch
            return assigned(cluster, found)

        joined = await beat(client, subscribed_topic_names=[])
        epoch = joined.member_epoch
        assert (joined.error_code, assigned(cluster, joined)) == (0, [])
        both = await epoch_after(subscribed_topic_regex="u[12]")
        assert {name for name, _ in both} == {"u1", "u2"}
        more = await epoch_after(subscribed_topic_names=["t", "not a name!", "later"])
        assert {name for name, _ in more} == {"t", "u1", "u2"}
        less = await epoch_after(subscribed_topic_regex="")
        assert {name for name, _ in less} == {"t"}
        none = await epoch_after(subscribed_topic_names=[])
        assert none == []


@virtual
async def test_a_member_of_http_and_one_of_kafka_share_a_group() -> None:
    async with cluster_of() as cluster:
        client = await started(cluster)
        joined = await beat(client)
        port = cluster.nodes[1].groups.service
        http = await port.heartbeat(
            Heartbeat(group_id="g", member_id="h1", member_epoch=0, topics=("t",))
        )
        assert http.assignment == ()
        kept = assigned(cluster, await beat(client, member_epoch=joined.member_epoch))
        await beat(client, member_epoch=joined.member_epoch, **owning(cluster, kept))
        got = await port.heartbeat(
            Heartbeat(group_id="g", member_id="h1", member_epoch=http.member_epoch)
        )
        taken = [(name, number) for name, numbers in got.assignment for number in numbers]
        assert sorted(kept + taken) == ALL
        described = await client.call(69, 1, group_ids=["g"], include_authorized_operations=False)
        assert [one.member_id for one in described.groups[0].members] == ["h1", "m1"]


@virtual
async def test_a_static_member_comes_back_to_its_partitions() -> None:
    async with cluster_of() as cluster:
        client = await started(cluster)
        joined = await beat(client, instance_id="i1")
        # While it is there, no other member gets its name. While it is away, its partitions stay with it.
        second = await beat(client, member_id="m2", instance_id="i1")
        assert second.error_code == KafkaCode.UNRELEASED_INSTANCE_ID
        await beat(client, member_id="m3")
        left = await beat(client, member_epoch=-2, instance_id="i1")
        assert (left.error_code, left.member_epoch, left.assignment) == (0, -2, None)
        again = await beat(client, member_id="m2", instance_id="i1")
        assert (again.error_code, again.member_epoch > joined.member_epoch) == (0, True)
        assert len(assigned(cluster, again)) == len(ALL) // 2
        fenced = await beat(client, member_epoch=joined.member_epoch)
        assert fenced.error_code == KafkaCode.FENCED_INSTANCE_ID


@virtual
async def test_a_static_member_that_stays_away_is_removed_when_its_session_ends() -> None:
    async with cluster_of() as cluster:
        client = await started(cluster)
        await beat(client, instance_id="i1")
        await beat(client, member_epoch=-2, instance_id="i1")
        await LoopClock().sleep(40_000)
        described = await client.call(69, 1, group_ids=["g"], include_authorized_operations=False)
        assert [one.member_id for one in described.groups[0].members] == ["m1"]
        await LoopClock().sleep(10_000)
        described = await client.call(69, 1, group_ids=["g"], include_authorized_operations=False)
        assert (described.groups[0].group_state, described.groups[0].members) == ("Empty", [])


@virtual
async def test_partitions_of_a_member_that_is_away_are_free_for_others_at_once() -> None:
    async with cluster_of() as cluster:
        client = await started(cluster)
        await beat(client, instance_id="i1")
        await beat(client, member_epoch=-2, instance_id="i1")
        joined = await beat(client, member_id="m2")
        await LoopClock().sleep(1_000)
        got = await beat(client, member_id="m2", member_epoch=joined.member_epoch)
        assert len(assigned(cluster, got)) == len(ALL) // 2


@pytest.mark.parametrize("is_named", [True, False])
@virtual
async def test_a_new_coordinator_believes_what_a_member_said_once(is_named: bool) -> None:
    # Clients name their partitions only if these have changed, and after an error.
    async with cluster_of() as cluster:
        client = await started(cluster)
        await beat(client)
        second = await beat(client, member_id="m2")
        kept = assigned(cluster, await beat(client, member_epoch=1))
        former = cluster.nodes[1].groups.classic.find_coordinator("g")
        assert former is not None
        await cluster.kill(former)
        node = cluster.any
        await cluster.until(lambda: node.groups.classic.find_coordinator("g") != former)
        now = node.groups.classic.find_coordinator("g")
        assert now is not None
        await cluster.until(lambda: cluster.nodes[now].groups.calls.coordinates("g"))
        client = client_of(cluster.nodes[now])
        said = {
            "topic_partitions": [
                {
                    "topic_id": uuid.UUID(hex=node.metadata.image.topic_ids["t"]),
                    "partitions": [number for _, number in kept],
                }
            ]
        }
        told = await beat(client, member_epoch=1, **(said if is_named else {}))
        assert (told.error_code, told.member_epoch) == (0, 1)
        if not is_named:
            # A client that found this node by another request has had no error, so it does not name them.
            refused = await beat(client, member_epoch=1)
            assert refused.error_code == KafkaCode.COORDINATOR_NOT_AVAILABLE
            await beat(client, member_epoch=1, **said)
        again = await beat(client, member_epoch=1)
        assert again.error_code == 0
        got = await beat(client, member_id="m2", member_epoch=second.member_epoch)
        (topic,) = got.assignment.topic_partitions
        assert len(topic.partitions) == len(ALL) // 2


@virtual
async def test_members_commit_under_their_epoch_what_they_hold() -> None:
    async with cluster_of() as cluster:
        client = await started(cluster)
        joined = await beat(client)
        member = {"member_id": "m1", "generation_id_or_member_epoch": joined.member_epoch}
        assert await commit(client, ("t", 0, 7), **member) == [0]
        assert await fetch(client, {"t": [0]}) == {("t", 0): (7, "note")}
        stale = member | {"generation_id_or_member_epoch": joined.member_epoch + 1}
        assert await commit(client, ("t", 0, 8), **stale) == [KafkaCode.STALE_MEMBER_EPOCH]
        await cluster.create("u", PARTITIONS)
        assert await commit(client, ("t", 1, 5), ("u", 0, 5), **member) == [
            0,
            KafkaCode.STALE_MEMBER_EPOCH,
        ]
        for epoch, code in ((joined.member_epoch, 0), (9, KafkaCode.STALE_MEMBER_EPOCH)):
            group = {"group_id": "g", "member_id": "m1", "member_epoch": epoch, "topics": None}
            (found,) = (await client.call(9, 9, groups=[group], require_stable=True)).groups
            assert found.error_code == code
        other = member | {"member_id": "m9"}
        assert await commit(client, ("t", 0, 8), **other) == [KafkaCode.UNKNOWN_MEMBER_ID]


@pytest.mark.parametrize("version", [0, 1])
@virtual
async def test_a_group_is_described_in_the_words_of_kafka(version: int) -> None:
    async with cluster_of() as cluster:
        client = await started(cluster)
        await beat(client, server_assignor="range", instance_id="i1")
        found = await client.call(69, version, group_ids=["g"], include_authorized_operations=True)
        (group,) = found.groups
        assert (group.error_code, group.group_state, group.assignor_name) == (0, "Stable", "range")
        assert (group.group_epoch, group.assignment_epoch) == (1, 1)
        (member,) = group.members
        assert (member.member_id, member.instance_id, member.member_epoch) == ("m1", "i1", 1)
        assert (member.client_id, member.client_host) == ("test", "/127.0.0.1")
        assert member.subscribed_topic_names == ["t"]
        (topic,) = member.assignment.topic_partitions
        assert (topic.topic_name, topic.topic_id) == ("t", topic_id(cluster))
        assert topic.partitions == list(range(len(ALL)))
        (wanted,) = member.target_assignment.topic_partitions
        assert wanted.partitions == topic.partitions
        assert group.authorized_operations == {3, 6, 8}
        find = cluster.nodes[1].groups.classic.find_coordinator
        name = next(name for name in map(str, range(100)) if find(name) == find("g"))
        found = await client.call(69, version, group_ids=[name], include_authorized_operations=True)
        (none,) = found.groups
        assert (none.error_code, none.group_state) == (KafkaCode.GROUP_ID_NOT_FOUND, "Dead")
        assert f"group {name!r} does not exist" in none.error_message


@virtual
async def test_a_classic_group_and_one_of_this_kind_keep_apart() -> None:
    async with cluster_of() as cluster:
        client = await started(cluster)
        await join(client, version=3)
        refused = await beat(client)
        assert refused.error_code == KafkaCode.INCONSISTENT_GROUP_PROTOCOL
        found = await client.call(69, 1, group_ids=["g"], include_authorized_operations=False)
        assert found.groups[0].error_code == KafkaCode.GROUP_ID_NOT_FOUND


@virtual
async def test_lists_and_descriptions_know_the_kind() -> None:
    async with cluster_of() as cluster:
        client = await started(cluster)
        joined = await beat(client)
        (found,) = (await client.call(16, 5, states_filter=[], types_filter=["consumer"])).groups
        assert (found.group_id, found.group_type, found.protocol_type) == (
            "g",
            "consumer",
            "consumer",
        )
        assert found.group_state == "Stable"
        assert not (await client.call(16, 5, states_filter=["empty"], types_filter=[])).groups
        await beat(client, member_epoch=-1)
        assert joined.error_code == 0
        (found,) = (await client.call(16, 5, states_filter=["empty"], types_filter=[])).groups
        assert found.group_type == "consumer"
        (classic,) = (
            await client.call(15, 5, groups=["g"], include_authorized_operations=False)
        ).groups
        assert classic.group_state == "Dead"


def test_the_assignors_have_the_names_of_kafka() -> None:
    assert ASSIGNORS == {"uniform": "sticky", "range": "range"}
