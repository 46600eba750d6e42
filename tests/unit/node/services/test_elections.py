"""Leadership goes back to first replicas on the word of any node, and through a change of the controller."""

import pytest

from milena.model.errors import StaleControllerEpochError
from node.services import elections
from raft_meta.machine.commands import ElectLeaders
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.time.virtual_time import virtual


async def displaced(cluster: Cluster, partitions: int) -> list[tuple[str, int]]:
    """Partitions that broker 2 should lead, and does not; their keys."""
    await cluster.create("t", *[(2, 1, 3)] * partitions)
    topic_id = cluster.image.topic_ids["t"]
    keys = [(topic_id, number) for number in range(partitions)]
    await cluster.kill(2)
    await cluster.until(lambda: cluster.is_led("t"))
    await cluster.restart(2)
    await cluster.until(lambda: all(2 in cluster.image.partitions[key].isr for key in keys))
    assert {cluster.image.partitions[key].leader for key in keys} == {1}
    return keys


@virtual
async def test_the_named_partitions_change_their_leader_and_no_others() -> None:
    async with cluster_of() as cluster:
        keys = await displaced(cluster, 3)
        service = cluster.nodes[3].elections
        assert await service.prefer([]) == set()
        assert await service.prefer([keys[1], ("0" * 32, 0), (keys[0][0], -1)]) == {keys[1]}
        image = cluster.nodes[3].metadata.image
        assert [image.partitions[key].leader for key in keys] == [1, 2, 1]
        assert await service.prefer(None) == {keys[0], keys[2]}
        assert await service.prefer(None) == set()


@virtual
async def test_many_elections_are_several_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elections, "CHANGES_MAX", 2)
    async with cluster_of() as cluster:
        keys = await displaced(cluster, 5)
        assert await cluster.nodes[3].elections.prefer(keys) == set(keys)


@virtual
async def test_another_controller_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of() as cluster:
        keys = await displaced(cluster, 1)
        metadata = cluster.nodes[3].metadata
        propose, refused = metadata.propose, list[int]()

        async def overtaken(command: ElectLeaders, *, timeout_ms: int) -> object:
            if not refused:
                refused.append(command.controller_epoch)
                raise StaleControllerEpochError("another one took over")
            return await propose(command, timeout_ms=timeout_ms)

        monkeypatch.setattr(metadata, "propose", overtaken)
        assert await cluster.nodes[3].elections.prefer(keys) == set(keys)
        assert len(refused) == 1
