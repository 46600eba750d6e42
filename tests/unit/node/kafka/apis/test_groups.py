"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup and FindCoordinator, as a client sends them to a node."""

import asyncio
from typing import Any

import pytest

from http_api.protocol.kafka_codes import KafkaCode
from node.kafka.wire import cold
from tests.support.clusters.kafka_clients import KafkaClient, client_of
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.time.virtual_time import virtual


async def coordinator(cluster: Cluster, group: str = "g") -> KafkaClient:
    """A connection to the group's coordinator."""
    found = await client_of(cluster.nodes[1]).call(10, 3, key=group, key_type=0)
    return client_of(cluster.nodes[found.node_id])


async def join(client: KafkaClient, *, version: int = 9, member_id: str = "", **more: Any) -> Any:
    fields = {
        "group_id": "g",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"m"}],
        "reason": None,
    } | more
    return await client.call(11, version, **fields)


async def sync(client: KafkaClient, joined: Any, *, version: int = 5, rows: Any = ()) -> Any:
    return await client.call(
        14,
        version,
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": name, "assignment": data} for name, data in rows],
    )


async def heartbeat(client: KafkaClient, joined: Any, version: int = 4) -> int:
    found = await client.call(
        12,
        version,
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        group_instance_id=None,
    )
    return int(found.error_code)


@pytest.mark.parametrize(
    ("join_version", "sync_version", "leave_version"),
    [
        (0, 0, 0),
        (1, 1, 1),
        (2, 2, 2),
        (3, 2, 2),
        (4, 2, 2),
        (5, 3, 3),
        (6, 4, 4),
        (7, 5, 5),
        (9, 5, 5),
    ],
)
@virtual
async def test_a_member_joins_syncs_beats_and_leaves_in_every_version(
    join_version: int, sync_version: int, leave_version: int
) -> None:
    async with cluster_of() as cluster:
        client = await coordinator(cluster)
        joined = await join(client, version=join_version)
        if join_version >= 4:
            assert joined.error_code == KafkaCode.MEMBER_ID_REQUIRED
            joined = await join(client, version=join_version, member_id=joined.member_id)
        assert joined.error_code == 0
        assert joined.leader == joined.member_id
        assert [(one.member_id, bytes(one.metadata)) for one in joined.members] == [
            (joined.member_id, b"m")
        ]
        synced = await sync(client, joined, version=sync_version, rows=[(joined.member_id, b"a")])
        assert (synced.error_code, bytes(synced.assignment)) == (0, b"a")
        assert await heartbeat(client, joined, min(sync_version, 4)) == 0
        members = [{"member_id": joined.member_id, "group_instance_id": None, "reason": None}]
        left = await client.call(
            13, leave_version, group_id="g", member_id=joined.member_id, members=members
        )
        assert left.error_code == 0
        assert [one.error_code for one in left.members or ()] == ([0] if leave_version >= 3 else [])
        assert await heartbeat(client, joined) == KafkaCode.UNKNOWN_MEMBER_ID


@virtual
async def test_the_second_member_makes_the_first_one_join_again() -> None:
    async with cluster_of() as cluster:
        one, two = await coordinator(cluster), await coordinator(cluster)
        first = await join(one, version=3)
        await sync(one, first, rows=[(first.member_id, b"a")])
        joining = asyncio.ensure_future(join(two, version=3))
        await asyncio.sleep(1)
        assert await heartbeat(one, first) == KafkaCode.REBALANCE_IN_PROGRESS
        again = await join(one, version=3, member_id=first.member_id)
        second = await joining
        assert again.generation_id == second.generation_id == first.generation_id + 1
        assert {one.member_id for one in again.members} == {first.member_id, second.member_id}
        assert second.members == []
        waiting = asyncio.ensure_future(sync(two, second))
        rows = [(first.member_id, b"1"), (second.member_id, b"2")]
        assert bytes((await sync(one, again, rows=rows)).assignment) == b"1"
        assert bytes((await waiting).assignment) == b"2"
        assert await heartbeat(one, first) == KafkaCode.ILLEGAL_GENERATION


@virtual
async def test_only_the_coordinator_serves_a_group() -> None:
    async with cluster_of() as cluster:
        client = client_of(cluster.nodes[1])
        found = await client.call(10, 5, key_type=0, coordinator_keys=["g", ""])
        good, bad = found.coordinators
        assert (good.error_code, good.key) == (0, "g")
        assert bad.error_code == KafkaCode.INVALID_GROUP_ID
        other = next(node for name, node in cluster.nodes.items() if name != good.node_id)
        refused = await join(client_of(other), version=3)
        assert refused.error_code == KafkaCode.NOT_COORDINATOR


@virtual
async def test_a_client_that_goes_away_gives_up_its_join() -> None:
    async with cluster_of() as cluster:
        one, two = await coordinator(cluster), await coordinator(cluster)
        first = await join(one, version=3)
        await sync(one, first, rows=[(first.member_id, b"a")])
        joining = asyncio.ensure_future(join(two, version=3))
        await asyncio.sleep(1)
        two.transport.abort()
        with pytest.raises(AssertionError):
            await joining
        # The member that will not sync leaves the group when its session ends.
        again = await join(one, version=3, member_id=first.member_id)
        await sync(one, again, rows=[(first.member_id, b"b")])
        assert first.member_id in {one.member_id for one in again.members}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"group_id": ""}, KafkaCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": -1}, KafkaCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 2**31 - 1}, KafkaCode.INVALID_SESSION_TIMEOUT),
        ({"protocols": []}, KafkaCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, KafkaCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "stranger"}, KafkaCode.UNKNOWN_MEMBER_ID),
    ],
)
@virtual
async def test_a_join_that_cannot_be_is_refused_and_the_connection_stays(
    change: dict[str, Any], code: KafkaCode
) -> None:
    async with cluster_of() as cluster:
        client = await coordinator(cluster)
        assert (await join(client, version=3, **change)).error_code == code
        assert (await join(client, version=3)).error_code == 0


@virtual
async def test_a_frame_with_too_many_items_ends_its_connection() -> None:
    async with cluster_of() as cluster:
        client = client_of(cluster.nodes[1])
        body = cold.encode_request(10, 4, {"key_type": 0, "coordinator_keys": ["g"] * 10_001})
        client.ask(10, 4, body)
        await asyncio.sleep(1)
        assert client.transport.is_aborted
        other = client_of(cluster.nodes[1])
        assert (await other.call(10, 3, key="g", key_type=0)).error_code == 0
