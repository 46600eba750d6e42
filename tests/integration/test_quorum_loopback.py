"""``RaftQuorum`` over loopback sockets and a real disk: first boot, commands, failover, rejoining."""

import asyncio
import ssl
from pathlib import Path

import pytest
import uvloop
from cryptography.x509 import DNSName, UniformResourceIdentifier

from loadtest.bench.servers.identities import LOCAL, Authority
from milena.model.errors import FateUnknownError, NoQuorumError, RequestTooLargeError
from node.config.sources import load_config
from node.process.tls import peer_tls
from raft_meta.consensus.library import COMMAND_BYTES_MAX
from raft_meta.consensus.quorum import Role
from tests.support.clusters.quorum_cluster import QuorumCluster

pytestmark = [pytest.mark.integration, pytest.mark.smoke]


@pytest.fixture(autouse=True, params=[asyncio.new_event_loop, uvloop.new_event_loop])
def _loop_of_the_quorum(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node's quorum runs on uvloop, whose transports and timers are not asyncio's; both must do."""
    monkeypatch.setattr(asyncio, "new_event_loop", request.param)


async def test_a_command_is_applied_everywhere_and_answered_on_any_node(tmp_path: Path) -> None:
    async with QuorumCluster(tmp_path) as cluster:
        await cluster.leader()
        for number, member in enumerate(cluster.running()):
            response = await member.quorum.propose(b"c%d" % number, timeout_ms=5000)
            assert response.endswith(b":c%d" % number)
        for member in cluster.running():
            await member.quorum.barrier(timeout_ms=5000)
            assert [command for _, command in member.machine.commands] == [b"c0", b"c1", b"c2"]


async def test_a_single_voter_is_a_cluster(tmp_path: Path) -> None:
    async with QuorumCluster(tmp_path, voters=1) as cluster:
        member = await cluster.leader()
        assert (await member.quorum.propose(b"x", timeout_ms=5000)).endswith(b":x")
        await member.stop()
        await member.start()
        await cluster.leader()
        assert [command for _, command in member.machine.commands] == [b"x"]


async def test_failover_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    async with QuorumCluster(tmp_path) as cluster:
        leader = await cluster.leader()
        await leader.quorum.propose(b"kept", timeout_ms=5000)
        await leader.stop()
        successor = await cluster.leader()
        assert successor is not leader
        await successor.quorum.propose(b"next", timeout_ms=5000)
        await leader.start()
        await leader.quorum.barrier(timeout_ms=5000)
        assert [command for _, command in leader.machine.commands] == [b"kept", b"next"]


async def test_an_observer_applies_proposes_and_never_leads(tmp_path: Path) -> None:
    async with QuorumCluster(tmp_path, voters=1, observers=1) as cluster:
        await cluster.leader()
        observer = cluster.members[2]
        assert (await observer.quorum.propose(b"x", timeout_ms=5000)).endswith(b":x")
        assert observer.quorum.status().role is Role.OBSERVER
        assert [command for _, command in observer.machine.commands] == [b"x"]


async def test_leadership_is_handed_over_on_request(tmp_path: Path) -> None:
    async with QuorumCluster(tmp_path) as cluster:
        leader = await cluster.leader()
        assert await leader.quorum.transfer_leadership(timeout_ms=5000)
        assert await cluster.leader() is not leader


async def test_without_a_majority_a_command_is_refused_or_unknown_never_lost(
    tmp_path: Path,
) -> None:
    async with QuorumCluster(tmp_path) as cluster:
        leader = await cluster.leader()
        for follower in cluster.followers(leader):
            await follower.stop()
        with pytest.raises((NoQuorumError, FateUnknownError)):
            await leader.quorum.propose(b"x", timeout_ms=300)
        with pytest.raises(NoQuorumError):
            await leader.quorum.barrier(timeout_ms=300)
        async with asyncio.timeout(10):
            while leader.quorum.status().role is Role.LEADER:
                await asyncio.sleep(0.01)
        with pytest.raises(NoQuorumError):
            await leader.quorum.propose(b"x", timeout_ms=100)


async def test_a_command_above_one_mebibyte_is_refused(tmp_path: Path) -> None:
    async with QuorumCluster(tmp_path, voters=1) as cluster:
        member = await cluster.leader()
        await member.quorum.propose(bytes(COMMAND_BYTES_MAX), timeout_ms=5000)
        with pytest.raises(RequestTooLargeError):
            await member.quorum.propose(bytes(COMMAND_BYTES_MAX + 1), timeout_ms=5000)


async def test_a_voter_that_lost_its_directory_learns_before_it_votes(tmp_path: Path) -> None:
    async with QuorumCluster(tmp_path) as cluster:
        leader = await cluster.leader()
        await leader.quorum.propose(b"kept", timeout_ms=5000)
        victim = cluster.followers(leader)[0]
        await victim.stop()
        victim.wipe()
        await victim.start()
        async with asyncio.timeout(10):
            while Role.LEARNER not in {status.role for status in victim.statuses}:
                await asyncio.sleep(0.01)
            while victim.quorum.status().role is not Role.FOLLOWER:
                await asyncio.sleep(0.01)
        assert [command for _, command in victim.machine.commands] == [b"kept"]


TLS = Path(__file__).parent.parent / "data" / "tls"


def contexts(name: str) -> dict[str, ssl.SSLContext]:
    """Contexts that show the certificate of this name and trust the cluster's authority."""
    made = {}
    for option, protocol in (
        ("ssl_server", ssl.PROTOCOL_TLS_SERVER),
        ("ssl_client", ssl.PROTOCOL_TLS_CLIENT),
    ):
        context = ssl.SSLContext(protocol)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(TLS / f"{name}.pem", TLS / f"{name}.key")
        context.load_verify_locations(TLS / "cluster-ca.pem")
        made[option] = context
    return made


async def test_voters_meet_over_mutual_tls(tmp_path: Path) -> None:
    async with QuorumCluster(tmp_path, **contexts("cluster")) as cluster:
        leader = await cluster.leader()
        assert (await leader.quorum.propose(b"x", timeout_ms=5000)).endswith(b":x")


async def test_a_stranger_s_certificate_is_refused(tmp_path: Path) -> None:
    async with QuorumCluster(tmp_path, voters=1, observers=1, **contexts("cluster")) as cluster:
        await cluster.leader()
        observer = cluster.members[2]
        await observer.stop()
        cluster.options.update(contexts("stranger"))
        await observer.start()
        with pytest.raises(NoQuorumError):
            await observer.quorum.propose(b"x", timeout_ms=500)


async def test_a_node_whose_certificate_names_others_is_refused(tmp_path: Path) -> None:
    names = [
        *LOCAL,
        DNSName("node-1"),
        UniformResourceIdentifier("milena:node:2"),
        DNSName("node-3"),
    ]
    authority = Authority(tmp_path)
    shown = authority.issue("voters", "voters", others=names)
    flags = {
        "peer_tls_cert_file": str(shown.certificate),
        "peer_tls_key_file": str(shown.key),
        "peer_tls_ca_file": str(authority.file),
    }
    tls = peer_tls(load_config(None, {}, flags))
    assert tls is not None
    async with QuorumCluster(
        tmp_path / "quorum",
        observers=1,
        ssl_server=tls.server,
        ssl_client=tls.client,
        verifies_id=True,
    ) as cluster:
        leader = await cluster.leader()
        assert (await leader.quorum.propose(b"x", timeout_ms=5000)).endswith(b":x")
        with pytest.raises(NoQuorumError):
            await cluster.members[4].quorum.propose(b"x", timeout_ms=500)


async def test_a_follower_that_was_away_for_long_gets_a_snapshot(tmp_path: Path) -> None:
    async with QuorumCluster(tmp_path, log_bytes_max=50_000) as cluster:
        leader = await cluster.leader()
        away = cluster.followers(leader)[0]
        await away.stop()
        for number in range(300):
            await leader.quorum.propose(b"%d" % number + bytes(500), timeout_ms=5000)
        await away.start()
        await away.quorum.barrier(timeout_ms=10_000)
        await leader.quorum.barrier(timeout_ms=5000)
        assert len(away.machine.commands) == 300
        assert away.machine.commands == leader.machine.commands
        assert (away.directory / "snapshot").exists()


async def test_acknowledged_commands_survive_a_restart_of_all_nodes(tmp_path: Path) -> None:
    async with QuorumCluster(tmp_path) as cluster:
        leader = await cluster.leader()
        for number in range(20):
            await leader.quorum.propose(b"%d" % number, timeout_ms=5000)
        for member in cluster.running():
            await member.stop()
        for member in cluster.members.values():
            await member.start()
        leader = await cluster.leader()
        assert [command for _, command in leader.machine.commands] == [b"%d" % n for n in range(20)]
        assert leader.quorum.last_contact_ms(cluster.followers(leader)[0].node_id) is not None
