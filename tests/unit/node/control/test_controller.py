"""Rules of the controller: who is let in, who is fenced and when, who leads, and that only one decides."""

import pytest

from milena.model.contained import EntryPoint
from milena.model.errors import (
    FeatureLevelError,
    MalformedRequestError,
    MilenaError,
    NotReadyError,
    StaleBrokerEpochError,
    StaleControllerEpochError,
)
from node.control.controller import (
    CHECK_IMAGE_MS,
    CHECK_IMAGE_SHARE,
    FORGET_LOOKS,
    PROBES_MAX,
    UNCLEAN_PATIENCE_MS,
)
from node.control.messages import BrokerHeartbeatAnswer, BrokerHeartbeatRequest
from node.peers.port import ProbeResult
from raft_meta.machine import codec
from raft_meta.machine.commands import (
    AllocateProducer,
    AlterConfigs,
    AlterIsr,
    CheckImage,
    ClaimController,
    CommitOffsets,
    ElectLeaders,
    FenceBroker,
    IsrChange,
    IsrMember,
    LeaderChange,
)
from raft_meta.machine.image import Image
from raft_meta.machine.topics import elections
from tests.support.clusters.control import SESSION_MS, TOPIC_ID, TRANSACTIONAL_ID_MS, Control
from tests.support.time.virtual_time import LateThreads, after, current_loop, settle, virtual

REPORT = BrokerHeartbeatRequest(
    broker_epoch=1, echo=0, applied_index=1, is_draining=False, is_disk_full=False
)


def age_of(answer: BrokerHeartbeatAnswer | MilenaError) -> int:
    """How old the controller's knowledge was."""
    assert isinstance(answer, BrokerHeartbeatAnswer)
    return answer.age_ms


def fenced_ever(control: Control) -> set[int]:
    """Brokers that any command fenced."""
    commands = [codec.decode_envelope(data).command for data in control.log.commands]
    return {command.broker_id for command in commands if isinstance(command, FenceBroker)}


class TestClaim:
    @virtual
    async def test_the_first_controller_names_the_cluster_and_raises_the_epoch(self) -> None:
        control = await Control().start()
        assert control.image.cluster_id == "cluster"
        assert (control.image.controller_id, control.image.controller_epoch) == (1, 1)
        assert control.nodes[1].controller.is_active
        assert not control.nodes[2].controller.is_active
        control.stop()

    @virtual
    async def test_only_the_raft_leader_is_active(self) -> None:
        control = await Control().start()
        control.log.elect(2)
        await settle()
        assert not control.nodes[1].controller.is_active
        assert control.nodes[2].controller.is_active
        assert (control.image.controller_id, control.image.controller_epoch) == (2, 2)
        control.stop()

    @virtual
    async def test_a_claim_that_fails_is_repeated(self) -> None:
        control = Control()
        control.nodes[1].quorum.faults = ["refused", "refused", "vanished"]
        control.log.elect(1)
        await after(5_000)
        assert control.nodes[1].controller.is_active
        control.stop()

    @virtual
    async def test_a_new_term_of_the_same_leader_is_a_new_claim(self) -> None:
        control = await Control().start()
        control.log.elect(1)
        await settle()
        assert control.image.controller_epoch == 2
        control.stop()

    @virtual
    async def test_a_deposed_controllers_commands_do_nothing(self) -> None:
        control = await Control().start(1, 2)
        await control.create((1, 2))
        control.log.elect(2)
        await settle()
        changes = (
            LeaderChange(topic_id=TOPIC_ID, partition=0, partition_epoch=0, leader=2, isr=(1, 2)),
        )
        fence = FenceBroker(
            controller_epoch=1, broker_id=1, broker_epoch=control.epochs[1], changes=changes
        )
        for command in (fence, ElectLeaders(controller_epoch=1, changes=changes)):
            with pytest.raises(StaleControllerEpochError):
                await control.propose(command)
        assert not control.broker(1).is_fenced
        assert control.partition().leader == 1
        control.stop()

    @virtual
    async def test_a_late_claim_of_a_former_leader_does_not_stop_the_present_one(self) -> None:
        # The former leader's claim was on its way when Raft leadership moved, and is committed after the new one's.
        control = await Control().start(1, 2, 3)
        await control.create((2, 1, 3))
        await control.propose(ClaimController(broker_id=3), node_id=3)
        await control.live(SESSION_MS + 1_000, 2)
        assert control.broker(2).is_fenced
        assert control.partition().leader == 1
        assert control.image.controller_id == 1
        control.stop()

    @virtual
    async def test_an_unexpected_error_is_contained_and_the_controller_claims_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        control = await Control().start(1, 2, 3)
        await control.create((2, 1, 3))

        def broken(*_: object, **__: object) -> None:
            raise KeyError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr("node.control.controller.cluster.supported_level", broken)
            await after(200)
        assert control.nodes[1].contained.counts[EntryPoint.TASK] == 1
        await control.live(SESSION_MS + 3_000, 2)
        assert control.broker(2).is_fenced
        assert control.partition().leader == 1
        control.stop()


class TestSessions:
    @virtual
    async def test_a_broker_is_let_in_once_it_has_caught_up_and_reported(self) -> None:
        control = await Control().start()
        await control.register(1)
        await after(500)
        assert control.broker(1).is_fenced
        control.beat(1)
        await settle()
        assert not control.broker(1).is_fenced
        control.stop()

    @virtual
    async def test_a_broker_whose_image_is_behind_its_registration_stays_out(self) -> None:
        control = await Control().start()
        epoch = await control.register(1)
        control.beat(1, index=epoch - 1)
        await after(300)
        assert control.broker(1).is_fenced
        control.stop()

    @virtual
    async def test_a_silent_broker_is_fenced_when_its_session_ends_and_not_before(self) -> None:
        control = await Control().start(1, 2, 3)
        await control.create((2, 1, 3))
        await control.live(SESSION_MS - 100, 2)
        assert not control.broker(2).is_fenced
        await control.live(400, 2)
        assert control.broker(2).is_fenced
        assert (control.partition().leader, control.partition().isr) == (1, (1, 3))
        control.stop()

    @virtual
    async def test_a_broker_that_comes_back_is_let_in_again(self) -> None:
        control = await Control().start(1, 2)
        await control.live(SESSION_MS + 500, 2)
        assert control.broker(2).is_fenced
        await control.live(500)
        assert not control.broker(2).is_fenced
        control.stop()

    @virtual
    async def test_a_broker_that_does_not_hear_us_is_fenced(self) -> None:
        control = await Control().start(1, 2)
        for _ in range(20):
            control.beat(1)
            control.beat(2, echo=12_345)
            await after(100)
        assert control.broker(2).is_fenced
        assert not control.broker(1).is_fenced
        control.stop()

    @virtual
    async def test_another_life_of_a_broker_is_refused(self) -> None:
        control = await Control().start(1)
        assert isinstance(control.beat(1, epoch=control.epochs[1] - 1), StaleBrokerEpochError)
        control.stop()

    @virtual
    async def test_who_is_not_controller_refuses_heartbeats(self) -> None:
        control = await Control().start(1)
        with pytest.raises(NotReadyError):
            control.nodes[2].controller.take_heartbeat(1, REPORT)
        with pytest.raises(MalformedRequestError):
            await control.active.on_heartbeat(1, {"epoch": "x"}, b"")
        control.stop()

    @virtual
    async def test_a_new_controller_gives_everybody_a_fresh_session(self) -> None:
        control = await Control().start(1, 2, 3)
        await control.live(SESSION_MS - 200, 3)
        control.log.elect(2)
        await settle()
        control.echoes.clear()
        await control.live(SESSION_MS - 200, 3)
        assert not control.broker(3).is_fenced
        await control.live(500, 3)
        assert control.broker(3).is_fenced
        control.stop()

    @virtual
    async def test_its_answers_say_how_long_ago_a_majority_was_heard_of(self) -> None:
        control = await Control().start(1, 2, 3)
        now_ms = control.clock.now_ms()
        control.nodes[1].quorum.contacts.update({2: now_ms - 900, 3: now_ms - 400})
        assert age_of(control.beat(2)) == 400, (
            "ourselves and the one that spoke last are two of three"
        )
        control.stop()

    @virtual
    async def test_the_previous_raft_leaders_session_counts_from_its_last_message(self) -> None:
        control = await Control().start(1, 2, 3)
        control.nodes[2].quorum.contacts[1] = control.clock.now_ms()
        await control.live(SESSION_MS - 200, 1)
        control.log.elect(2)
        await settle()
        control.echoes.clear()
        await control.live(400, 1)
        assert control.broker(1).is_fenced
        control.stop()

    @virtual
    async def test_after_a_stall_of_its_own_it_judges_nobody(self) -> None:
        control = await Control().start(1, 2, 3)
        current_loop().stall(SESSION_MS * 2)
        await after(200)
        assert not any(control.broker(i).is_fenced for i in (1, 2, 3))
        await control.live(SESSION_MS + 500, 3)
        assert control.broker(3).is_fenced
        control.stop()

    @virtual
    async def test_a_heartbeat_during_a_slow_fence_of_another_broker_still_counts(self) -> None:
        control = await Control().start(1, 2, 3)
        control.nodes[1].quorum.faults = ["lost"]
        count = len(control.nodes[1].quorum.proposed)
        while len(control.nodes[1].quorum.proposed) == count:
            control.beat(1)
            await after(20)
        control.beat(3)
        await control.live(500, 2)
        assert control.broker(2).is_fenced
        assert 3 not in fenced_ever(control)
        control.stop()

    @virtual
    async def test_a_fenced_broker_earns_no_lease_before_it_has_heard_of_its_fence(self) -> None:
        # It comes back over the peer port while Raft has not reached it: it would speak for what others lead.
        control = await Control().start(1, 2, 3)
        await control.create((2, 1, 3))
        before = control.image.index
        await control.live(SESSION_MS + 500, 2)
        assert control.broker(2).is_fenced
        assert control.partition().leader != 2
        control.hear_majority()
        answer = control.beat(2, index=before)
        assert age_of(answer) == SESSION_MS
        await after(300)
        assert control.broker(2).is_fenced
        control.hear_majority()
        answer = control.beat(2)
        assert age_of(answer) == 0
        await after(300)
        assert not control.broker(2).is_fenced
        control.stop()

    @virtual
    async def test_a_broker_that_is_being_fenced_earns_no_lease(self) -> None:
        control = await Control().start(1, 2, 3)
        control.nodes[1].quorum.faults = ["lost"]
        count = len(control.nodes[1].quorum.proposed)
        while len(control.nodes[1].quorum.proposed) == count:
            control.beat_all(2)
            await after(20)
        control.hear_majority()
        answer = control.beat(2)
        assert age_of(answer) == SESSION_MS
        control.stop()


class TestQuickDetection:
    @virtual
    async def test_two_refused_dials_fence_at_once(self) -> None:
        control = await Control().start(1, 2)
        control.probes[2] = ProbeResult.REFUSED
        control.active.on_disconnected(2)
        await after(50)
        assert not control.broker(2).is_fenced
        await after(100)
        assert control.broker(2).is_fenced
        control.stop()

    @virtual
    @pytest.mark.parametrize("result", [ProbeResult.CONNECTED, ProbeResult.UNREACHABLE])
    async def test_any_other_result_proves_nothing(self, result: ProbeResult) -> None:
        control = await Control().start(1, 2)
        control.probes[2] = result
        control.active.on_disconnected(2)
        await after(300)
        assert not control.broker(2).is_fenced
        control.stop()

    @virtual
    async def test_a_dying_process_that_still_accepted_is_found_out(self) -> None:
        control = await Control().start(1, 2)
        control.probes[2] = ProbeResult.CONNECTED
        control.active.on_disconnected(2)
        await after(50)
        control.probes[2] = ProbeResult.REFUSED
        await after(250)
        assert control.broker(2).is_fenced
        control.stop()

    @virtual
    async def test_a_process_that_listens_again_is_not_fenced(self) -> None:
        control = await Control().start(1, 2)
        control.probes[2] = ProbeResult.REFUSED
        control.active.on_disconnected(2)
        await after(50)
        control.probes[2] = ProbeResult.CONNECTED
        await after(200)
        assert not control.broker(2).is_fenced
        control.stop()

    @virtual
    async def test_a_new_controller_dials_everybody(self) -> None:
        control = await Control().start(1, 2, 3)
        control.probes[1] = ProbeResult.REFUSED
        control.log.elect(2)
        control.echoes.clear()
        await after(300)
        assert control.broker(1).is_fenced
        assert {1, 3} <= set(control.dialled)
        control.stop()

    @virtual
    async def test_one_probe_at_a_time(self) -> None:
        control = await Control().start(1, 2)
        control.dialled.clear()
        for _ in range(10):
            control.active.on_disconnected(2)
        await after(500)
        assert control.dialled == [2] * PROBES_MAX
        control.stop()


class TestLeadership:
    @virtual
    async def test_a_leaderless_partition_gets_a_leader_when_a_member_comes_back(self) -> None:
        control = await Control().start(1, 2)
        await control.create((2,))
        await control.live(SESSION_MS + 500, 2)
        assert control.partition().leader is None
        assert control.partition().isr == (2,)
        await control.live(500)
        assert control.partition().leader == 2
        control.stop()

    @virtual
    async def test_configs_of_a_topic_wake_nobody_while_every_partition_is_led(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They can only say who may lead where nobody does; all partitions would be looked through for each."""
        control = await Control().start(1, 2)
        await control.create((1, 2))
        await control.live(300)
        turns: list[Image] = []
        plan = elections.plan_elections

        def look(image: Image, *, with_unclean: bool) -> tuple[LeaderChange, ...]:
            turns.append(image)
            return plan(image, with_unclean=with_unclean)

        monkeypatch.setattr(elections, "plan_elections", look)
        await control.propose(AlterConfigs(topic_id=TOPIC_ID, changes=(("flush.ms", "5"),)))
        assert not control.active._work.is_set()
        await control.live(300)
        assert turns == []
        await control.live(SESSION_MS + 500, 1)
        assert turns
        assert control.partition().leader == 2
        control.stop()

    @virtual
    async def test_a_topic_that_comes_to_allow_unclean_elections_gets_its_leader_at_once(
        self,
    ) -> None:
        control = await Control().start(1, 2)
        await control.create((2, 1), (1, 2))
        await control.live(SESSION_MS + 500, 1)
        await control.live(SESSION_MS + 500, 1, 2)
        await control.live(UNCLEAN_PATIENCE_MS + 500, 2)
        assert (control.partition().leader, control.partition().isr) == (None, (2,))
        unclean = (("unclean.leader.election.enable", "true"),)
        await control.propose(AlterConfigs(topic_id=TOPIC_ID, changes=unclean))
        await settle()
        assert control.partition().leader == 1
        control.stop()

    @virtual
    async def test_an_unclean_election_comes_when_its_patience_ends_though_nothing_changes(
        self,
    ) -> None:
        control = await Control().start(1, 2)
        await control.create((2, 1), unclean_leader_election_enable="true")
        await control.live(SESSION_MS + 500, 1)
        await control.live(SESSION_MS + 500, 1, 2)
        await control.live(1_000, 2)
        assert (control.partition().leader, control.partition().isr) == (None, (2,))
        await control.live(UNCLEAN_PATIENCE_MS, 2)
        assert control.partition().leader == 1
        control.stop()

    @virtual
    async def test_transactional_ids_that_nobody_uses_are_forgotten(self) -> None:
        control = await Control(feature_level=codec.FEATURE_LEVEL_MAX).start()
        await control.propose(AllocateProducer(name="kept"))
        await control.propose(AllocateProducer(name="idle", is_transactional=True))
        await control.propose(AllocateProducer(name="busy", is_transactional=True))
        for part in range(4):
            await after(TRANSACTIONAL_ID_MS // 3)
            if part == 2:
                await control.propose(AllocateProducer(name="busy", is_transactional=True))
        await after(TRANSACTIONAL_ID_MS // FORGET_LOOKS)
        assert set(control.image.producer_names) == {"kept", "busy"}
        control.stop()

    @virtual
    async def test_preferred_leaders_come_back_now_and_then(self) -> None:
        control = Control(preferred_interval_ms=5_000)
        await control.start(1, 2)
        await control.create((2, 1))
        await control.live(SESSION_MS + 500, 2)
        assert control.partition().leader == 1
        await control.live(500)
        members = tuple(IsrMember(broker_id=b, broker_epoch=control.epochs[b]) for b in (2, 1))
        state = control.partition()
        await control.propose(
            AlterIsr(
                broker_id=1,
                broker_epoch=control.epochs[1],
                changes=(
                    IsrChange(
                        topic_id=TOPIC_ID,
                        partition=0,
                        leader_epoch=state.leader_epoch,
                        partition_epoch=state.partition_epoch,
                        isr=members,
                    ),
                ),
            )
        )
        await control.live(5_100)
        assert control.partition().leader == 2
        control.stop()

    @virtual
    async def test_a_draining_broker_loses_everything_that_others_can_take(self) -> None:
        control = await Control().start(1, 2, 3)
        await control.create((2, 1), (1, 2), (2, 3))
        await control.live(SESSION_MS + 300, 3)
        for _ in range(10):
            answer = control.beat(2, draining=True)
            control.beat_all(2, 3)
            await after(100)
        assert answer == BrokerHeartbeatAnswer(number=control.echoes[2], is_drained=True, age_ms=0)
        assert [control.partition(i).leader for i in range(3)] == [1, 1, 2]
        assert [2 in control.partition(i).isr for i in range(3)] == [False, False, True]
        assert not control.broker(2).is_fenced
        control.stop()

    @virtual
    async def test_a_broker_that_was_not_let_in_yet_has_drained_at_once(self) -> None:
        control = await Control().start(1, 3)
        await control.register(2)
        assert control.broker(2).is_fenced
        answer = control.beat(2, draining=True)
        assert isinstance(answer, BrokerHeartbeatAnswer)
        assert answer.is_drained
        for _ in range(3):
            control.beat(2, draining=True)
            await settle()
        assert control.broker(2).is_fenced
        control.stop()

    @virtual
    async def test_a_broker_without_room_gives_up_its_leaderships(self) -> None:
        control = await Control().start(1, 2, 3)
        await control.create((2, 1, 3))
        control.beat(2, full=True)
        await settle()
        assert (control.partition().leader, control.partition().isr) == (1, (1, 3))
        assert not control.broker(2).is_fenced
        control.stop()

    @virtual
    async def test_when_nobody_has_room_everybody_keeps_what_he_has(self) -> None:
        control = await Control().start(1, 2)
        await control.create((2, 1))
        for _ in range(5):
            control.beat(1, full=True)
            control.beat(2, full=True)
            await after(100)
        assert (control.partition().leader, control.partition().isr) == (2, (2, 1))
        control.stop()

    @virtual
    async def test_a_proposal_that_fails_is_made_again(self) -> None:
        control = await Control().start(1, 2)
        await control.create((2, 1))
        await control.live(SESSION_MS - 100, 2)
        control.nodes[1].quorum.faults = ["refused", "lost", "refused"]
        await control.live(2_000, 2)
        assert control.broker(2).is_fenced
        assert control.partition().leader == 1
        control.stop()

    @virtual
    async def test_now_and_then_every_node_compares_its_image(self) -> None:
        control = await Control().start(1)
        before = len(control.log.commands)
        for minute in range(1, 4):
            await control.live(CHECK_IMAGE_MS + 1_000)
            assert len(control.log.commands) == before + minute
        checks = [codec.decode_envelope(data).command for data in control.log.commands[before:]]
        marks = [command.index for command in checks if isinstance(command, CheckImage)]
        assert marks == [0, before + 1, before + 2]
        assert all(not node.contained.total for node in control.nodes.values())
        control.stop()

    @virtual
    async def test_no_session_waits_for_a_hash(self) -> None:
        control = await Control().start(1, 2)
        threads = LateThreads(ms=5_000)
        current_loop().set_default_executor(threads)
        await control.live(2 * CHECK_IMAGE_MS)
        assert threads.jobs > 0
        await control.live(SESSION_MS + 500, 2)
        assert control.broker(2).is_fenced
        control.stop()

    @virtual
    async def test_a_hash_takes_a_hundredth_of_the_time_at_most(self) -> None:
        control = await Control().start(1)
        await control.live(CHECK_IMAGE_MS + 1_000)
        before = len(control.log.commands)
        current_loop().set_default_executor(LateThreads(ms=5_000))
        await control.live(CHECK_IMAGE_MS + 5_000)
        assert len(control.log.commands) == before + 1
        await control.live(CHECK_IMAGE_SHARE * 5_000 - CHECK_IMAGE_MS)
        assert len(control.log.commands) == before + 1
        await control.live(CHECK_IMAGE_MS + 6_000)
        assert len(control.log.commands) == before + 2
        control.stop()


class TestFeatureLevel:
    @virtual
    async def test_it_rises_once_every_node_was_upgraded(self) -> None:
        control = await Control(feature_level=2).start()
        commit = CommitOffsets(broker_id=1, broker_epoch=0, commits=())
        for broker_id in (1, 2, 3):
            await control.register(broker_id, feature_max=2)
        for broker_id in (1, 2):
            # One after the other is restarted under the next release.
            await control.register(broker_id, feature_max=3)
            await control.live(2_000)
            assert control.image.feature_level == 2
            written = len(control.log.commands)
            with pytest.raises(FeatureLevelError, match="rises by itself"):
                await control.propose(commit)
            assert len(control.log.commands) == written
        await control.register(3, feature_max=3)
        await control.live(2_000)
        assert control.image.feature_level == 3
        # What the next level knows is judged by its own rules from now on.
        with pytest.raises(StaleBrokerEpochError):
            await control.propose(commit)
        control.stop()
