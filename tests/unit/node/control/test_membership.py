"""Rules of a broker's place in the cluster: registration, heartbeats, the lease, draining."""

import asyncio

import pytest

from milena.model.errors import NotReadyError, StartupError
from node.config.budgets import REFUSED_RETRY_MS
from node.control.broker_heartbeats import PAUSE_MS
from node.control.membership import (
    ANSWER_GAP_MS_MAX,
    TAKEN_ID_SESSIONS,
    TAKEN_ID_SLACK_MS,
    Identity,
    Membership,
)
from node.control.messages import HEARTBEAT, BrokerHeartbeatAnswer, BrokerHeartbeatRequest
from node.peers.codec import Fields
from node.peers.messages import pack, unpack
from node.process.cluster_clock import ClusterClock
from raft_meta.machine.commands import (
    ClaimController,
    FenceBroker,
    InitCluster,
    UnfenceBroker,
)
from storage.replica.data_directory import DataDirectory
from tests.support.clusters.control import SESSION_MS, registration, store
from tests.support.disk.memory_files import MemoryFiles
from tests.support.fakes.peers import Network
from tests.support.fakes.quorum import FakeQuorum, SharedLog
from tests.support.time.virtual_time import LoopClock, after, settle, virtual

PATIENCE_MS = TAKEN_ID_SESSIONS * SESSION_MS + TAKEN_ID_SLACK_MS
"""How long an id is waited for under one controller."""


class Member:
    """Broker 2; node 1 leads the quorum and answers heartbeats by hand."""

    def __init__(
        self,
        files: MemoryFiles | None = None,
        log: SharedLog | None = None,
        session_ms: int = SESSION_MS,
    ) -> None:
        self.clock = ClusterClock(LoopClock(), skew_ms_max=2_000, has_company=True)
        self.files = files or MemoryFiles()
        self.log = log or SharedLog(leader_id=1)
        self.metadata = store(self.log, 2)
        quorum = self.metadata.quorum
        assert isinstance(quorum, FakeQuorum)
        self.quorum = quorum
        self.network = Network()
        self.heartbeats: list[BrokerHeartbeatRequest] = []
        self.is_drained = False
        self.age_ms = 0
        self.access_version = 0
        self.refusal: Exception | None = None
        self.fields: Fields | None = None
        self.network.join(1, {HEARTBEAT.name: self.on_heartbeat})
        self.directory = DataDirectory.open(
            self.files, "/data", node_id=2, directory_id="mine", reserve_bytes=0
        )
        self.membership = Membership(
            broker_id=2,
            identity=lambda: Identity(
                api_url="http://node2",
                peer_host="h",
                peer_port=7,
                rack="r",
                feature_min=1,
                feature_max=1,
            ),
            metadata=self.metadata,
            peer=self.network.join(2, {}),  # type: ignore[arg-type]
            directory=self.directory,
            clock=self.clock,
            session_ms=session_ms,
            heartbeat_ms=300,
            local_heartbeat=self.local_heartbeat,
        )
        self.metadata.listen(self.membership.on_image)

    async def on_heartbeat(self, peer_id: int, fields: Fields, body: object) -> object:
        answer, chunks = pack(self.local_heartbeat(peer_id, unpack(BrokerHeartbeatRequest, fields)))
        return answer if self.fields is None else self.fields, chunks

    def local_heartbeat(
        self, broker_id: int, report: BrokerHeartbeatRequest
    ) -> BrokerHeartbeatAnswer:
        assert broker_id == 2
        self.heartbeats.append(report)
        if self.refusal is not None:
            raise self.refusal
        return BrokerHeartbeatAnswer(
            number=len(self.heartbeats),
            is_drained=self.is_drained,
            age_ms=self.age_ms,
            access_version=self.access_version,
        )

    async def ready(self) -> "Member":
        """The cluster has a name and node 1 is its controller."""
        first = store(self.log, 1)
        self.first = first
        await first.propose(
            InitCluster(cluster_id="c", voters=(1,), feature_level=1), timeout_ms=100
        )
        await first.propose(ClaimController(broker_id=1), timeout_ms=100)
        return self

    async def register(self) -> int:
        return await self.membership.register((), was_clean_stop=False)

    async def other_owner(self) -> int:
        """Another directory has this id, and is not fenced; returns its broker epoch."""
        epoch = await self.first.propose(registration(2, directory_id="another"), timeout_ms=100)
        assert isinstance(epoch, int)
        await self.first.propose(
            UnfenceBroker(controller_epoch=1, broker_id=2, broker_epoch=epoch), timeout_ms=100
        )
        return epoch

    async def fence(self, epoch: int) -> None:
        """Node 1 fences that owner."""
        controller_epoch = self.first.image.controller_epoch
        await self.first.propose(
            FenceBroker(
                controller_epoch=controller_epoch, broker_id=2, broker_epoch=epoch, changes=()
            ),
            timeout_ms=100,
        )

    def run(self) -> "asyncio.Task[None]":
        return asyncio.get_running_loop().create_task(self.membership.run())


class TestRegistration:
    @virtual
    async def test_the_epoch_is_remembered_by_the_directory_before_anything_else(self) -> None:
        member = await Member().ready()
        epoch = await member.register()
        assert member.membership.broker_epoch == member.directory.broker_epoch == epoch
        broker = member.metadata.image.brokers[2]
        assert (broker.is_fenced, broker.directory_id, broker.rack) == (True, "mine", "r")
        assert not member.membership.is_unfenced

    @virtual
    async def test_it_goes_on_until_the_quorum_answers(self) -> None:
        member = await Member().ready()
        member.quorum.faults = ["refused", "vanished", "lost", "ok"]
        assert await member.register() == member.metadata.image.brokers[2].broker_epoch

    @virtual
    async def test_one_that_is_applied_after_the_next_one_changes_nothing(self) -> None:
        """Its answer got lost, and so did it, for a while."""
        member = await Member().ready()
        member.quorum.faults = ["vanished"]
        epoch = await member.register()
        member.log.commit(member.quorum.proposed[0])
        await settle()
        broker = member.membership.me(member.metadata.image)
        assert broker is not None
        assert broker.broker_epoch == epoch

    @virtual
    async def test_each_start_is_another_life(self) -> None:
        member = await Member().ready()
        first = await member.register()
        member.directory.close()
        again = Member(member.files, member.log)
        second = await again.register()
        assert second > first
        assert member.membership.me(again.metadata.image) is None
        assert again.membership.me(again.metadata.image) is not None

    @virtual
    async def test_a_clock_that_was_set_back_does_not_keep_a_node_out(self) -> None:
        member = await Member().ready()
        await member.register()
        member.directory.close()
        again = Member(member.files, member.log)
        again.metadata.incarnation = 0
        assert await again.register() > member.membership.broker_epoch

    @virtual
    async def test_time_without_a_quorum_does_not_count_against_an_id_in_use(self) -> None:
        """Who would have fenced the id's former owner meanwhile was not there either."""
        member = await Member().ready()
        epoch = await member.other_owner()
        member.quorum.faults = ["refused"] * (2 * PATIENCE_MS // REFUSED_RETRY_MS)
        registering = asyncio.create_task(member.register())
        await after(2 * PATIENCE_MS + PATIENCE_MS // 2)
        assert not registering.done()
        await member.fence(epoch)
        assert await registering > epoch

    @virtual
    async def test_a_quorum_that_was_lost_after_the_first_refusal_counts_no_more_than_before(
        self,
    ) -> None:
        member = await Member().ready()
        epoch = await member.other_owner()
        registering = asyncio.create_task(member.register())
        for _ in range(5):
            await after(PATIENCE_MS // 2)
            member.quorum.faults = ["refused"] * (2 * ANSWER_GAP_MS_MAX // REFUSED_RETRY_MS)
            await after(2 * ANSWER_GAP_MS_MAX)
            assert not registering.done()
        await member.fence(epoch)
        assert await registering > epoch

    @virtual
    async def test_patience_with_an_id_in_use_begins_anew_with_every_controller(self) -> None:
        """Each of them gives the id's former owner a whole session first."""
        member = await Member().ready()
        epoch = await member.other_owner()
        registering = asyncio.create_task(member.register())
        for _ in range(5):
            await after(PATIENCE_MS - 1_000)
            assert not registering.done()
            await member.first.propose(ClaimController(broker_id=1), timeout_ms=100)
        await member.fence(epoch)
        assert await registering > epoch

    @pytest.mark.parametrize("session_ms", [SESSION_MS, 60_000])
    @virtual
    async def test_an_id_in_use_is_refused_after_some_sessions_under_one_controller(
        self, session_ms: int
    ) -> None:
        member = await Member(session_ms=session_ms).ready()
        await member.other_owner()
        began = member.clock.now_ms()
        with pytest.raises(StartupError, match="another id, or stop that one"):
            await member.register()
        patience_ms = TAKEN_ID_SESSIONS * session_ms + TAKEN_ID_SLACK_MS
        assert patience_ms <= member.clock.now_ms() - began <= patience_ms + 1_000

    @virtual
    async def test_that_an_id_is_waited_for_is_said_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        member = await Member().ready()
        epoch = await member.other_owner()
        registering = asyncio.create_task(member.register())
        await after(PATIENCE_MS // 2)
        said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert len(said) == 1
        assert "waiting for the broker id: Node id 2 belongs to a live node" in said[0]
        await member.fence(epoch)
        await registering

    @virtual
    async def test_an_id_whose_holder_is_fenced_meanwhile_is_taken(self) -> None:
        member = await Member().ready()
        epoch = await member.other_owner()
        registering = asyncio.ensure_future(member.register())
        await after(500)
        assert not registering.done()
        await member.fence(epoch)
        assert await registering > epoch


class TestLease:
    @virtual
    async def test_it_runs_from_the_moment_the_answered_heartbeat_was_sent(self) -> None:
        member = await Member().ready()
        member.network.delay_ms = lambda: 200.0
        await member.register()
        assert not member.membership.has_lease
        running = member.run()
        # The first turn dials.
        await after(PAUSE_MS + 399)
        assert not member.membership.has_lease
        await after(2)
        assert member.membership.has_lease
        assert member.membership.lease_left_ms == SESSION_MS - 401
        member.refusal = NotReadyError("not the controller")
        await after(SESSION_MS - 401 - 1)
        assert member.membership.has_lease
        await after(1)
        assert not member.membership.has_lease
        running.cancel()

    @virtual
    async def test_it_is_as_old_as_what_the_controller_knew_of_its_majority(self) -> None:
        # A Raft leader that was cut off answers, its own broker above all, until it notices.
        member = await Member().ready()
        await member.register()
        running = member.run()
        await after(100)
        assert member.membership.has_lease
        member.age_ms = SESSION_MS
        await after(SESSION_MS + 100)
        assert not member.membership.has_lease
        running.cancel()

    @virtual
    async def test_every_heartbeat_echoes_the_last_answer(self) -> None:
        member = await Member().ready()
        await member.register()
        running = member.run()
        await after(1_000)
        assert [beat.echo for beat in member.heartbeats[:4]] == [0, 1, 2, 3]
        assert all(
            beat.broker_epoch == member.membership.broker_epoch for beat in member.heartbeats
        )
        running.cancel()

    @virtual
    async def test_who_lags_in_access_has_not_heard(self) -> None:
        member = await Member().ready()
        member.access_version = member.metadata.image.access_version + 1
        assert member.membership.heard_ms is None
        await member.register()
        running = member.run()
        await after(700)
        assert member.membership.has_lease
        assert member.membership.heard_ms is None
        member.access_version = 0
        member.age_ms = 50
        await after(700)
        heard_ms = member.membership.heard_ms
        assert heard_ms is not None
        assert 50 <= member.clock.now_ms() - heard_ms <= 50 + 700
        running.cancel()

    @virtual
    async def test_no_answer_no_lease(self) -> None:
        member = await Member().ready()
        await member.register()
        running = member.run()
        await after(500)
        member.network.cuts = {(1, 2)}
        await after(SESSION_MS + 1)
        assert not member.membership.has_lease
        member.network.heal()
        await after(1_200)
        assert member.membership.has_lease
        running.cancel()

    @virtual
    async def test_it_lasts_on_a_network_slower_than_the_turns(self) -> None:
        member = await Member().ready()
        await member.register()
        running = member.run()
        await after(500)
        member.network.delay_ms = lambda: 350.0
        for _ in range(50):
            await after(100)
            assert member.membership.has_lease
        # As often as on a quick network, only later.
        assert len(member.heartbeats) >= 15
        running.cancel()

    @virtual
    async def test_a_new_leader_is_not_kept_waiting_by_what_the_old_one_owes(self) -> None:
        member = await Member().ready()
        await member.register()
        running = member.run()
        await after(500)
        member.network.cuts = {(1, 2)}
        await after(310)
        member.network.join(3, {HEARTBEAT.name: member.on_heartbeat})
        member.log.elect(3)
        member.membership.beat_soon()
        await after(2 * PAUSE_MS + 2)
        answered = member.heartbeats[-1]
        assert answered.echo == 0
        assert member.membership.lease_left_ms > SESSION_MS - 20
        running.cancel()

    @virtual
    async def test_a_controller_that_is_silent_is_dialled_again_once(self) -> None:
        member = await Member().ready()
        await member.register()
        running = member.run()
        await after(500)
        member.network.cuts = {(1, 2)}
        await after(SESSION_MS + 310)
        assert 1 <= member.network.disconnects.count((2, 1)) <= 3
        running.cancel()

    @virtual
    async def test_the_controllers_own_broker_needs_no_network(self) -> None:
        member = await Member().ready()
        await member.register()
        running = member.run()
        member.log.elect(2)
        member.network.isolate(2)
        await after(500)
        assert member.membership.has_lease
        running.cancel()

    @virtual
    async def test_an_answer_of_another_shape_is_none(self) -> None:
        member = await Member().ready()
        await member.register()
        member.fields = {"answer": "yes"}
        running = member.run()
        await after(500)
        assert not member.membership.has_lease
        assert {beat.echo for beat in member.heartbeats} == {0}
        running.cancel()

    @virtual
    async def test_a_new_controller_hears_of_us_at_once(self) -> None:
        member = await Member().ready()
        await member.register()
        running = member.run()
        await after(350)
        count = len(member.heartbeats)
        await member.first.propose(ClaimController(broker_id=1), timeout_ms=100)
        await after(PAUSE_MS + 1)
        assert len(member.heartbeats) == count + 1
        running.cancel()

    @virtual
    async def test_a_storm_of_images_is_no_storm_of_heartbeats(self) -> None:
        member = await Member().ready()
        await member.register()
        running = member.run()
        await settle()
        count = len(member.heartbeats)
        for _ in range(100):
            member.membership.beat_soon()
            await member.clock.sleep(1)
        assert len(member.heartbeats) - count <= 12
        running.cancel()


class TestStates:
    @virtual
    async def test_a_full_disk_is_told_at_once_and_its_end_too(self) -> None:
        member = await Member().ready()
        await member.register()
        running = member.run()
        await after(320)
        member.membership.on_disk_full()
        await after(12)
        assert member.heartbeats[-1].is_disk_full is True
        member.membership.on_disk_room()
        await after(12)
        assert member.heartbeats[-1].is_disk_full is False
        running.cancel()

    @virtual
    async def test_draining_lasts_until_the_controller_took_everything_away(self) -> None:
        member = await Member().ready()
        await member.register()
        running = member.run()
        draining = asyncio.ensure_future(member.membership.drain(timeout_ms=5_000))
        await after(300)
        assert member.heartbeats[-1].is_draining is True
        assert not draining.done()
        member.is_drained = True
        await after(60)
        assert draining.result()
        running.cancel()

    @virtual
    async def test_draining_gives_up_in_time(self) -> None:
        member = await Member().ready()
        await member.register()
        assert not await member.membership.drain(timeout_ms=700)

    @virtual
    async def test_who_never_registered_has_nothing_to_hand_over(self) -> None:
        member = await Member().ready()
        began_ms = member.clock.now_ms()
        assert await member.membership.drain(timeout_ms=30_000)
        assert member.clock.now_ms() == began_ms
        # It registers later and is not let in: it goes on to say that it drains.
        await member.register()
        running = member.run()
        await after(300)
        assert member.heartbeats[-1].is_draining is True
        running.cancel()
