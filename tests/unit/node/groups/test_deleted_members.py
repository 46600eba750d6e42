"""What a REST consumer leaves behind is shared out, whoever is the first to see that it is gone."""

import pytest

from http_api.ports.groups import Heartbeat, each_partition
from tests.support.clusters.nodes import cluster_of
from tests.support.groups.sim_consumers import GROUP, Client
from tests.support.time.virtual_time import after, virtual


@pytest.mark.parametrize("beat_after_ms", [0, 50, 1_000])
def test_its_partitions_go_to_who_is_left(beat_after_ms: int) -> None:
    @virtual
    async def run() -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), (2, 3, 1))
            client = await (await Client(cluster).create()).subscribe("t")
            service = cluster.nodes[1].groups.service
            joining = Heartbeat(
                group_id=GROUP, member_id="m", member_epoch=0, topics=("t",), owned=()
            )
            answer = await service.heartbeat(joining)
            await after(1_000)
            assert len(each_partition(answer.assignment)) < 2
            # Anything that is asked of the coordinator may be what first looks at the group then.
            await cluster.nodes[client.coordinator].consumers.service.delete(*client.name)
            for _ in range(10):
                await after(beat_after_ms)
                beat = Heartbeat(
                    group_id=GROUP,
                    member_id="m",
                    member_epoch=answer.member_epoch,
                    owned=answer.assignment,
                )
                answer = await service.heartbeat(beat)
                beat_after_ms_of_others = 300
                await after(beat_after_ms_of_others)
            assert each_partition(answer.assignment) == [("t", 0), ("t", 1)]

    run()
