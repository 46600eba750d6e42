"""DescribeGroups, ListGroups and DeleteGroups, as tools send them."""

import pytest

from http_api.protocol.kafka_codes import KafkaCode
from tests.support.clusters.nodes import cluster_of
from tests.support.time.virtual_time import virtual
from tests.unit.node.kafka.apis.test_groups import coordinator, join, sync


@pytest.mark.parametrize("version", range(7))
@virtual
async def test_a_group_is_described_with_its_members(version: int) -> None:
    async with cluster_of() as cluster:
        client = await coordinator(cluster)
        joined = await join(client, version=3)
        await sync(client, joined, rows=[(joined.member_id, b"a")])
        found = await client.call(
            15, version, groups=["g"], include_authorized_operations=version >= 3
        )
        (group,) = found.groups
        assert (group.error_code, group.group_state, group.protocol_data) == (0, "Stable", "range")
        (member,) = group.members
        assert (member.member_id, member.client_id) == (joined.member_id, "test")
        assert (bytes(member.member_metadata), bytes(member.member_assignment)) == (b"m", b"a")


@pytest.mark.parametrize(("version", "code"), [(5, 0), (6, KafkaCode.GROUP_ID_NOT_FOUND)])
@virtual
async def test_a_missing_group_is_dead(version: int, code: int) -> None:
    async with cluster_of() as cluster:
        client = await coordinator(cluster)
        found = await client.call(15, version, groups=["g"], include_authorized_operations=False)
        (group,) = found.groups
        assert (group.error_code, group.group_state, group.members) == (code, "Dead", [])


@pytest.mark.parametrize(
    ("states", "kinds", "shown"),
    [
        ([], [], ["g"]),
        (["stable"], ["Classic"], ["g"]),
        (["Empty"], [], []),
        ([], ["consumer"], []),
    ],
)
@virtual
async def test_groups_are_listed_by_state_and_kind(
    states: list[str], kinds: list[str], shown: list[str]
) -> None:
    async with cluster_of() as cluster:
        client = await coordinator(cluster)
        joined = await join(client, version=3)
        await sync(client, joined, rows=[(joined.member_id, b"a")])
        for version in (0, 3, 4, 5):
            found = await client.call(16, version, states_filter=states, types_filter=kinds)
            assert found.error_code == 0
            if version == 5 or not (states or kinds):
                assert [one.group_id for one in found.groups] == shown


@virtual
async def test_only_a_group_without_members_is_deleted() -> None:
    async with cluster_of() as cluster:
        client = await coordinator(cluster)

        async def delete() -> list[int]:
            found = await client.call(42, 2, groups_names=["g", ""])
            return [one.error_code for one in found.results]

        assert await delete() == [KafkaCode.GROUP_ID_NOT_FOUND, KafkaCode.INVALID_GROUP_ID]
        joined = await join(client, version=3)
        await sync(client, joined, rows=[(joined.member_id, b"a")])
        assert await delete() == [KafkaCode.NON_EMPTY_GROUP, KafkaCode.INVALID_GROUP_ID]
        await client.call(13, 0, group_id="g", member_id=joined.member_id)
        assert await delete() == [KafkaCode.NONE, KafkaCode.INVALID_GROUP_ID]
