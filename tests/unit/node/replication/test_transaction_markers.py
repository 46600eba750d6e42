"""Rules of leaders that end transactions in their logs, and those that nobody else ends."""

from raft_meta.machine import codec
from raft_meta.machine.commands import FinishMarkers
from tests.support.clusters.nodes import SimNode, cluster_of
from tests.support.time.virtual_time import virtual
from tests.unit.node.services.test_transactions import commit_of, send, two_topics


def finishes(node: SimNode) -> int:
    """How often it told the quorum of markers."""
    envelopes = map(codec.decode_envelope, node.quorum.proposed)
    return sum(isinstance(envelope.command, FinishMarkers) for envelope in envelopes)


@virtual
async def test_a_marker_of_which_the_quorum_did_not_hear_is_told_again() -> None:
    async with cluster_of() as cluster:
        await two_topics(cluster)
        one = await cluster.nodes[2].transactions.begin("me", timeout_ms=60_000)
        end = await send(cluster, 2, one, "t", "a")
        leader = cluster.nodes[1]
        propose = leader.quorum.propose

        async def refuse(command: bytes, *, timeout_ms: int) -> bytes:
            if isinstance(codec.decode_envelope(command).command, FinishMarkers):
                leader.quorum.propose = propose  # type: ignore[method-assign]
                leader.quorum.faults.append("refused")
            return await propose(command, timeout_ms=timeout_ms)

        leader.quorum.propose = refuse  # type: ignore[method-assign]
        await cluster.nodes[2].transactions.commit(commit_of(one, ("t", end, 1)))
        await cluster.until(lambda: not cluster.image.ending, timeout_ms=5_000)
        assert finishes(leader) == 2
