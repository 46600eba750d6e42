"""Whom a step hits, what is noted, and when a cycle is cut short; against nodes on paper."""

import pytest

from tests.chaos import nemesis as nemesis_module
from tests.chaos.history import Fault, Heal, History, Outcome, Write
from tests.chaos.nemesis import Nemesis
from tests.chaos.scenarios import Cycle, Step
from tests.chaos.setup import Setup


class PaperNode:
    """A node with its process and disk in one; ``log`` tells what was done to it."""

    def __init__(self, node_id, log):
        self.node_id = node_id
        self.url = f"http://{node_id}"
        self.process = self.disk = self
        self.is_up, self.is_paused = True, False
        self.exit_code = None
        self.can_lose_power = False
        self.log = log

    @property
    def is_healthy(self):
        return self.is_up and not self.is_paused

    def note(self, what):
        self.log.append((what, self.node_id))

    def kill(self):
        self.is_up = False
        self.note("kill")

    def stop(self):
        self.is_up = False
        self.note("stop")
        return self.node_id != 3

    def start(self):
        self.is_up = True
        self.note("start")

    def wipe(self):
        self.note("wipe")
        return "removed"

    def damage(self, operation, rng):
        self.note(operation)
        return "harmed"


class PaperCluster:
    def __init__(self):
        self.log = []
        self.network = None
        self.nodes = [PaperNode(i, self.log) for i in (1, 2, 3)]

    def node(self, node_id):
        return next((n for n in self.nodes if n.node_id == node_id), None)

    def heal(self):
        for node in self.nodes:
            if not node.is_up:
                node.start()


class PaperAdapter:
    def __init__(self):
        self.leaders = {1: 2, 2: 2, 3: 3}
        self.in_sync = True

    async def leader(self, base, topic, partition):
        return self.leaders[int(base.removeprefix("http://"))]

    async def is_in_sync(self, base, topic, partition):
        return self.in_sync

    async def is_ready(self, base):
        return True


@pytest.fixture
def paper(tmp_path, monkeypatch):
    for name in ("BETWEEN_STEPS_S", "START_S", "SETTLE_TIMEOUT_S", "FLOW_TIMEOUT_S", "POLL_S"):
        monkeypatch.setattr(nemesis_module, name, 1e-9 if name == "POLL_S" else 0)
    cluster, adapter = PaperCluster(), PaperAdapter()
    setup = Setup(scenario="none", seconds=1, seed=1)
    with History(tmp_path / "history.jsonl") as history:
        yield cluster, adapter, history, Nemesis(setup, cluster, adapter, history)


def cycle(*steps):
    return [Cycle(at_s=0.0, steps=tuple(Step(*s.split()) for s in steps), hold_s=0.0)]


async def test_the_leader_is_the_one_that_most_nodes_name(paper):
    cluster, _, history, nemesis = paper
    await nemesis.run(cycle("kill leader"))
    assert cluster.log == [("kill", 2), ("start", 2)]
    fault = next(e for e in history.events if isinstance(e, Fault))
    assert (fault.operation, fault.target, fault.nodes) == ("kill", "leader", (2,))


async def test_a_follower_is_any_other_healthy_node(paper):
    cluster, _, _, nemesis = paper
    cluster.nodes[0].is_up = False
    await nemesis.run(cycle("kill follower"))
    assert cluster.log[0] == ("kill", 3)


async def test_the_dead_are_told_apart_by_when_they_died(paper):
    cluster, _, _, nemesis = paper
    steps = ("kill leader", "kill follower", "torn dead", "start first-dead", "start second-dead")
    await nemesis.run(cycle(*steps))
    second = next(i for what, i in cluster.log if what == "torn")
    assert second != 2
    assert cluster.log == [
        ("kill", 2), ("kill", second), ("torn", second), ("start", 2), ("start", second),
    ]  # fmt: skip


async def test_no_directory_is_emptied_while_a_replica_is_behind(paper):
    cluster, adapter, history, nemesis = paper
    adapter.in_sync = False
    await nemesis.run(cycle("settle all", "kill follower", "wipe dead", "start dead"))
    assert cluster.log == []
    assert "left out" in next(e for e in history.events if isinstance(e, Fault)).detail


async def test_the_flow_step_waits_for_a_write_to_every_partition_since_the_heal(paper):
    cluster, _, history, nemesis = paper

    def write(partition):
        history.add(
            Write(
                at_s=1.0, sent_s=0.9, record=f"k{partition}:0", partition=partition, node=1,
                acks="all", outcome=Outcome.OK, offset=0,
            )
        )  # fmt: skip

    for partition in range(3):
        write(partition)
    history.add(Heal(at_s=2.0))
    write(0)
    assert not nemesis._is_written_everywhere()
    write(1)
    write(2)
    assert nemesis._is_written_everywhere()
    await nemesis.run(cycle("flow all"))
    assert cluster.log == []


async def test_a_node_that_died_by_itself_is_noted_at_the_heal(paper):
    cluster, _, history, nemesis = paper
    cluster.nodes[2].is_up, cluster.nodes[2].exit_code = False, 70
    await nemesis.run(cycle("kill leader"))
    heals = [e for e in history.events if isinstance(e, Heal)]
    assert [h.crashed for h in heals] == [{"3": 70}]


async def test_a_node_that_does_not_stop_in_time_is_told(paper):
    cluster, _, history, nemesis = paper
    await nemesis.run(cycle("roll all"))
    assert cluster.log == [(w, i) for i in (1, 2, 3) for w in ("stop", "start")]
    fault = next(e for e in history.events if isinstance(e, Fault))
    assert fault.detail == "did not stop in time: [3]"


async def test_choices_follow_from_the_seed(paper):
    cluster, adapter, history, _ = paper
    chosen = []
    for _ in range(2):
        cluster.log.clear()
        nemesis = Nemesis(Setup(scenario="none", seconds=1, seed=5), cluster, adapter, history)
        await nemesis.run(cycle("kill follower") * 6)
        chosen.append(list(cluster.log))
    assert chosen[0] == chosen[1]
