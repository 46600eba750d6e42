"""Consumer groups and REST consumers on real nodes, one HTTP call at a time, for tests."""

import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadtest.cluster.local_cluster import LocalCluster, LocalNode
from tests.support.clusters.live_cluster import DEADLINE_S, Answer, call, call_with, eventually, ok

NUMBERS = itertools.count(1)
READ_MS = 20_000
SHORT_SESSION_MS = 5_000
"""The session timeout of members that a test lets die; others must survive a machine that stalls."""


def parts(found: Iterable[dict[str, Any]]) -> set[tuple[str, int]]:
    """Return (topic, partition) of all partitions in a list of the API, which is by topic."""
    return {(item["topic"], number) for item in found for number in item["partitions"]}


def by_topic(places: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
    """Return pairs (topic, partition) as a list by topic, like the API's."""
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        found.setdefault(topic, []).append(partition)
    return [{"topic": topic, "partitions": numbers} for topic, numbers in found.items()]


@dataclass
class GroupMember:
    """A member that sends heartbeats when told to, to each node in turn; ``settings`` are sent when it joins."""

    nodes: Sequence[LocalNode]
    group: str
    settings: dict[str, Any]
    member_id: str | None = None
    epoch: int = 0
    owned: set[tuple[str, int]] = field(default_factory=set)
    pending: set[tuple[str, int]] = field(default_factory=set)
    generation: int = 0

    def __post_init__(self) -> None:
        self._round = itertools.cycle(self.nodes)

    def send(self, *, epoch: int | None = None, **query: object) -> Answer:
        """Send one heartbeat with the present state; return the response."""
        body: dict[str, Any] = {"member_epoch": self.epoch if epoch is None else epoch}
        if self.member_id is not None:
            body["member_id"] = self.member_id
        if self.epoch == 0:
            body |= self.settings
        body["owned"] = by_topic(self.owned)
        node = next(self._round)
        while not node.process.is_running:
            node = next(self._round)
        return call_with(node, f"POST /groups/{self.group}/heartbeat", body, query)

    def beat(self, *, epoch: int | None = None, **query: object) -> set[tuple[str, int]]:
        """Send a heartbeat, take the assigned partitions, and release at once those that are asked for."""
        found = ok(self.send(epoch=epoch, **query))
        self.member_id, self.epoch = found["member_id"], found["member_epoch"]
        self.generation = found["generation"]
        self.owned, self.pending = parts(found["assignment"]), parts(found["pending"])
        return self.owned

    def leave(self) -> None:
        """Leave the group."""
        ok(self.send(epoch=-1))
        self.owned, self.epoch = set(), 0

    def commit(self, *offsets: tuple[str, int, int], node: LocalNode | None = None) -> Answer:
        """Commit items of (topic, partition, offset of the next record)."""
        body = {
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "offsets": [{"topic": t, "partition": p, "offset": o} for t, p, o in offsets],
        }
        return call(node or next(self._round), f"POST /groups/{self.group}/offsets", body)


def new_group(name: str) -> str:
    """Return a group name that no other test uses."""
    return f"{name}-{next(NUMBERS)}"


def member_of(
    nodes: "LocalCluster | Sequence[LocalNode]", group: str, *topics: str, **settings: Any
) -> GroupMember:
    """Return a member that has not joined yet."""
    given = nodes.nodes if isinstance(nodes, LocalCluster) else nodes
    return GroupMember(
        given, group, {"topics": list(topics), "session_timeout_ms": 30_000, **settings}
    )


def settle(*members: GroupMember, deadline_s: float = DEADLINE_S) -> list[set[tuple[str, int]]]:
    """Let all members send heartbeats until each has its final assignment; return the assignments."""

    def all_beat() -> bool:
        before = [member.owned for member in members]
        after = [member.beat() for member in members]
        generations = {member.generation for member in members}
        is_known = before == after and len(generations) == 1
        return is_known and not any(member.pending for member in members)

    eventually(all_beat, deadline_s=deadline_s)
    return [member.owned for member in members]


def description(node: LocalNode, group: str) -> Any:
    """Return the node's description of the group."""
    return ok(call(node, f"GET /groups/{group}"))


def committed(node: LocalNode, group: str, topic: str) -> dict[int, int]:
    """Return the committed offset of each partition, as the quorum knows it."""
    answer = call(node, f"GET /groups/{group}/offsets", topic=topic)
    if answer.status == 404:
        return {}
    offsets = ok(answer)["offsets"].get(topic, {})
    return {int(partition): found["offset"] for partition, found in offsets.items()}


def coordinator_of(cluster: LocalCluster, group: str) -> LocalNode:
    """Return the node that coordinates the group, once it is known."""
    asked = next(node for node in cluster.nodes if node.process.is_running)
    return cluster.node(eventually(lambda: description(asked, group)["coordinator"]))


@dataclass
class RestConsumer:
    """A REST consumer. Each call goes to the next running node, or to a given one."""

    nodes: Sequence[LocalNode]
    group: str
    name: str
    base_uri: str = ""

    def __post_init__(self) -> None:
        self._round = itertools.cycle(self.nodes)

    def next_node(self) -> LocalNode:
        """Return the next running node."""
        return next(node for node in self._round if node.process.is_running)

    def ask(self, line: str, body: object = None, **query: object) -> Answer:
        """Make a call on the next node: ``ask("GET /records", timeout=500)``."""
        return self.ask_on(self.next_node(), line, body, **query)

    def ask_on(self, node: LocalNode, line: str, body: object = None, **query: object) -> Answer:
        """Make a call on this node."""
        method, _, path = line.partition(" ")
        at = f"/consumers/{self.group}/instances/{self.name}{path}"
        return call_with(node, f"{method} {at}", body, query)

    def create(self, **settings: object) -> "RestConsumer":
        """Create the consumer, by default for JSON, from the first record, without automatic commits."""
        body = {
            "name": self.name,
            "format": "json",
            "auto.offset.reset": "earliest",
            "auto.commit.enable": False,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        self.base_uri = ok(call(self.next_node(), f"POST /consumers/{self.group}", body))[
            "base_uri"
        ]
        return self

    def subscribe(self, *topics: str) -> "RestConsumer":
        """Subscribe to topics."""
        answer = self.ask("POST /subscription", {"topics": list(topics)})
        assert answer.status == 204, answer
        return self

    def read(self, **query: object) -> list[dict[str, Any]]:
        """Return the next records, as soon as there are any; pass a short ``timeout`` if none is expected."""
        return list(ok(self.ask("GET /records", **{"timeout": READ_MS, **query})))

    def read_records(self, count: int, **query: object) -> list[dict[str, Any]]:
        """Return this many records, with as many calls as necessary."""
        found: list[dict[str, Any]] = []
        deadline_s = time.monotonic() + DEADLINE_S
        while len(found) < count:
            found += self.read(**query)
            assert time.monotonic() < deadline_s, found
        return found

    def read_values(self, count: int, **query: object) -> list[Any]:
        """Return the values of this many records, with as many calls as necessary."""
        return [record["value"] for record in self.read_records(count, **query)]

    def commit(self) -> None:
        """Commit the delivered records."""
        answer = self.ask("POST /offsets")
        assert answer.status == 204, answer

    def assignments(self) -> set[tuple[str, int]]:
        """Return the partitions that it reads from."""
        found = ok(self.ask("GET /assignments"))["partitions"]
        return {(place["topic"], place["partition"]) for place in found}

    def delete(self) -> None:
        """Delete the consumer."""
        answer = self.ask("DELETE ")
        assert answer.status == 204, answer


def consumer_of(
    cluster: LocalCluster, group: str, name: str | None = None, **settings: object
) -> RestConsumer:
    """Create a consumer on one node; each further call goes to the next node."""
    name = name or f"c{next(NUMBERS)}"
    return RestConsumer(cluster.nodes, group, name).create(**settings)
