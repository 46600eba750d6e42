"""Commit offsets of groups, read lags, and let members join, take over and stop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.judge.client import Lost, Request, Response
from tests.judge.paths.read import FORM
from tests.judge.steps import kafka, reads
from tests.judge.world import World, body_of, code_of, is_unsure

if TYPE_CHECKING:
    import random

    from tests.judge.model import Partition, Topic

_FENCED = 40925  # a former epoch
_TAKEN_OVER = 40935  # another process has the instance id


@dataclass
class _Commits:
    """The possible commits of one step's group, by partition.

    A commit without a response may take effect at any later time, also after a read that does not show it.
    """

    group: str
    topic: Topic
    values: dict[int, int | None] = field(default_factory=dict)
    unsure: dict[int, set[int | None]] = field(default_factory=dict)
    history: list[str] = field(default_factory=list)

    def maybe(self, number: int) -> set[int | None]:
        return {self.values.get(number)} | self.unsure.get(number, set())

    def note(self, number: int, value: int | None, answer: Response | Lost, how: str) -> None:
        got = "lost" if isinstance(answer, Lost) else f"{answer.status} at node {answer.node}"
        self.history.append(f"{how} {number}: {value} {got}")
        if is_unsure(answer) or (isinstance(answer, Response) and answer.status >= 500):
            self.unsure.setdefault(number, set()).add(value)
        elif isinstance(answer, Response) and answer.status < 300:
            self.values[number] = value


def offsets(world: World, rng: random.Random) -> None:
    """Commit for a group without members in every possible way; read the committed offsets and the lag."""
    topic = world.topic(rng)
    commits = _Commits(f"{world.prefix}-g{next(world.numbers)}", topic)
    for _ in range(rng.randint(2, 5)):
        part = rng.choice(topic.partitions)
        ways = (_commit, _commit, _commit_in_transaction, _reset, _commit_read, _commit_by_kafka)
        rng.choice(ways)(world, rng, commits, part)
        _ask_committed(world, rng, commits)
        _ask_lag(world, rng, commits)


def _commit(world: World, rng: random.Random, commits: _Commits, part: Partition) -> None:
    value = rng.randint(0, part.end_floor(world.now)) + rng.choice((0, 0, 0, 100))
    _send_commit(world, rng, commits, part, value)


def _send_commit(
    world: World, rng: random.Random, commits: _Commits, part: Partition, value: int
) -> None:
    body = {"offsets": [{"topic": part.topic.name, "partition": part.number, "offset": value}]}
    answer = world.ask(rng, world.json("POST", f"/groups/{commits.group}/offsets", body))
    commits.note(part.number, value, answer, "commit")


def _commit_by_kafka(world: World, rng: random.Random, commits: _Commits, part: Partition) -> None:
    if world.kafka is not None:
        value = rng.randint(0, part.end_floor(world.now))
        answer = kafka.commit(world, world.kafka, commits.group, part, value)
        commits.note(part.number, value, answer, "by kafka")


def _commit_read(world: World, rng: random.Random, commits: _Commits, part: Partition) -> None:
    """Read to the end, and commit the next offset in the response."""
    form = FORM["binary"]
    start: int | None = part.first(world.now)
    value = None
    for _ in range(20):
        if start is None or start == value:
            break
        value = start
        start = reads.read_from(world, rng, part, form, start)
    if value is not None:
        _send_commit(world, rng, commits, part, value)


def _commit_in_transaction(
    world: World, rng: random.Random, commits: _Commits, part: Partition
) -> None:
    value = rng.randint(0, part.end_floor(world.now))
    offset = {
        "group": commits.group,
        "topic": part.topic.name,
        "partition": part.number,
        "next_offset": value,
    }
    answer = world.ask(rng, world.json("POST", "/transactions", {"offsets": [offset]}))
    commits.note(part.number, value, answer, "in a transaction")


def _reset(world: World, rng: random.Random, commits: _Commits, part: Partition) -> None:
    is_above = rng.random() < 0.2
    value = 1 << 40 if is_above else rng.randint(part.first(world.now), part.end_floor(world.now))
    body = {"topic": part.topic.name, "partitions": [part.number], "to": value}
    answer = world.ask(rng, world.json("POST", f"/groups/{commits.group}/offsets:reset", body))
    if isinstance(answer, Response) and answer.status == 200:
        told = body_of(answer)["offsets"][part.topic.name][str(part.number)]["offset"]
        where = f"reset of {commits.group} in {part.name} to {value} at node {answer.node}"
        is_deleted = value < part.start_range(answer.began, answer.ended)[1]
        is_right = not is_above and (told == value or is_deleted)
        world.check("J-commit", is_right, where, "40002" if is_above else value, told)
        value = told
    commits.note(part.number, value, answer, "reset")


def _ask_committed(world: World, rng: random.Random, commits: _Commits) -> None:
    if world.kafka is not None and rng.random() < 0.3:
        values = kafka.committed(world, world.kafka, commits.group, commits.topic)
        for number, value in enumerate(values or ()):
            _judge_committed(world, commits, number, value, f"kafka committed of {commits.group}")
        return
    target = rng.choice((f"/groups/{commits.group}/offsets", f"/groups/{commits.group}"))
    answer = world.ask(rng, Request("GET", target))
    if isinstance(answer, Lost) or answer.status >= 429:
        return
    told = body_of(answer)["offsets"].get(commits.topic.name, {}) if answer.status == 200 else {}
    for part in commits.topic.partitions:
        item = told.get(str(part.number))
        value = None if item is None else item["offset"]
        _judge_committed(world, commits, part.number, value, f"{target} at node {answer.node}")


def _judge_committed(
    world: World, commits: _Commits, number: int, value: int | None, where: str
) -> None:
    may, name = commits.maybe(number), commits.topic.partitions[number].name
    got = f"{value} after {commits.history}"
    world.check("J-commit", value in may, where, f"{name}: {may}", got)
    if value in may:
        commits.values[number] = value


def _ask_lag(world: World, rng: random.Random, commits: _Commits) -> None:
    base = f"/v3/clusters/{world.cluster_id}/consumer-groups/{commits.group}"
    target = rng.choice((f"/groups/{commits.group}/lags", f"{base}/lags", f"{base}/lag-summary"))
    answer = world.ask(rng, Request("GET", target))
    if not isinstance(answer, Response) or answer.status != 200:
        return
    told = body_of(answer)
    items = told.get("lags", told.get("data"))
    if items is None:
        return
    for item in items:
        number = item.get("partition", item.get("partition_id"))
        judge_lag(
            world, commits.topic.partitions[number], item, answer, f"{target} at node {answer.node}"
        )


def judge_lag(
    world: World, part: Partition, item: dict[str, Any], answer: Response, where: str
) -> None:
    """Check a lag, if nothing in progress could change it.

    The lag is the number of offsets up to the last visible record, without deleted ones. Above the end it is unknown.
    """
    value: Any = item.get("offset", item.get("current_offset"))
    lag = item["lag"]
    end = item.get("end_offset", item.get("log_end_offset"))
    with world.model.lock:
        if not part.is_quiet(answer.began) or end is None:
            return
        visible = part.must_show(answer.began, answer.ended, 0)
        begin = max(value, part.start_range(answer.began, answer.ended)[1])
        left = max(0, visible[-1] + 1 - begin) if visible else 0
        wanted = None if value > end else left
        world.check(
            "J-lag", lag == wanted, f"{where} {part.name}", f"{wanted} behind {value}", item
        )


@dataclass
class _Member:
    """A member, as its own process knows it."""

    world: World
    group: str
    member_id: str
    instance_id: str | None
    topic: Topic
    epoch: int = 0
    owned: frozenset[int] = frozenset()
    assigned: frozenset[int] = frozenset()

    def beat(self, rng: random.Random) -> Response | None:
        """Send a heartbeat with the partitions that the member works on."""
        body: dict[str, Any] = {"member_id": self.member_id, "member_epoch": self.epoch}
        body["owned"] = (
            [{"topic": self.topic.name, "partitions": sorted(self.owned)}] if self.owned else []
        )
        body |= {"instance_id": self.instance_id} if self.instance_id else {}
        body |= {"topics": [self.topic.name]} if self.epoch == 0 else {}
        answer = self.world.until_answered(
            rng, self.world.json("POST", f"/groups/{self.group}/heartbeat", body)
        )
        if not isinstance(answer, Response) or answer.status != 200:
            return answer if isinstance(answer, Response) else None
        told = body_of(answer)
        where = f"heartbeat of {self.member_id} in {self.group}"
        self.world.check(
            "J-epoch", told["member_epoch"] >= self.epoch, where, f"from {self.epoch}", told
        )
        self.epoch = told["member_epoch"]
        self.assigned = frozenset(
            number
            for item in told["assignment"]
            if item["topic"] == self.topic.name
            for number in item["partitions"]
        )
        self.owned &= self.assigned
        return answer

    def take(self) -> None:
        """Start to work on the assigned partitions."""
        self.owned = self.assigned

    def commit(
        self, rng: random.Random, number: int, offset: int, epoch: int | None = None
    ) -> Response | None:
        """Commit an offset of a partition."""
        body = {
            "member_id": self.member_id,
            "member_epoch": self.epoch if epoch is None else epoch,
            "offsets": [{"topic": self.topic.name, "partition": number, "offset": offset}],
        }
        answer = self.world.until_answered(
            rng, self.world.json("POST", f"/groups/{self.group}/offsets", body)
        )
        return answer if isinstance(answer, Response) else None


def members(world: World, rng: random.Random) -> None:
    """Let two members share a topic: no partition may belong to both, and no commit with an old epoch may succeed."""
    topic = world.topic(rng)
    check, group = world.check, f"{world.prefix}-m{next(world.numbers)}"
    crew = [_Member(world, group, f"m{n}", None, topic) for n in range(2)]
    for round_ in range(6):
        for member in crew[: 1 if round_ < 2 else 2]:
            if member.beat(rng) is None:
                return
            others = [other.owned for other in crew if other is not member]
            both = member.assigned.intersection(*others) if others else frozenset()
            check(
                "J-one-owner",
                not both,
                f"heartbeat of {member.member_id} in {group}",
                "partitions of one owner",
                both,
            )
            if not both:
                member.take()
    for member in crew:
        for number in member.owned:
            answer = member.commit(rng, number, 0)
            if answer is not None and answer.status < 500:
                is_taken = answer.status == 204 or code_of(answer) == _FENCED
                check(
                    "J-commit", is_taken, f"commit of an owner in {group}", "204", answer.body[:200]
                )
            if member.epoch > 0:
                late = member.commit(rng, number, 1, epoch=member.epoch - 1)
                if late is not None and late.status < 500:
                    is_fenced = code_of(late) in (_FENCED, 422)
                    check(
                        "J-epoch",
                        is_fenced,
                        f"commit under a former epoch in {group}",
                        "40925",
                        f"{late.status} {late.body[:200]!r}",
                    )
    _leave(world, rng, crew)


def _leave(world: World, rng: random.Random, crew: list[_Member]) -> None:
    for member in crew:
        body = {"member_id": member.member_id, "member_epoch": -1}
        world.until_answered(
            rng, world.json("POST", f"/groups/{member.group}/heartbeat", body), seconds=5
        )


def static_members(world: World, rng: random.Random) -> None:
    """Let a new process take over an `instance_id`: every call of the former process must tell it to stop."""
    topic = world.topic(rng)
    check, group = world.check, f"{world.prefix}-s{next(world.numbers)}"
    old = _Member(world, group, "old", "instance-1", topic)
    new = _Member(world, group, "new", "instance-1", topic)
    for member in (old, new):
        if member is new and old.epoch == 0:
            return
        for _ in range(2):
            if member.beat(rng) is None:
                return
            member.take()
    number = min(new.owned, default=0)
    leave = {"member_id": "old", "member_epoch": -1} | (
        {"instance_id": "instance-1"} if rng.random() < 0.5 else {}
    )
    tx_offset = {"group": group, "topic": topic.name, "partition": number, "next_offset": 0}
    tx_offset |= {"member_id": "old", "member_epoch": old.epoch}
    old_owned = [{"topic": topic.name, "partitions": sorted(old.owned)}]
    beat = {"member_id": "old", "member_epoch": old.epoch, "owned": old_owned}
    calls = {
        "heartbeat": world.json("POST", f"/groups/{group}/heartbeat", beat),
        "named heartbeat": world.json(
            "POST", f"/groups/{group}/heartbeat", {**beat, "instance_id": "instance-1"}
        ),
        "commit": world.json(
            "POST",
            f"/groups/{group}/offsets",
            {
                "member_id": "old",
                "member_epoch": old.epoch,
                "offsets": [{"topic": topic.name, "partition": number, "offset": 0}],
            },
        ),
        "offsets of a transaction": world.json("POST", "/transactions", {"offsets": [tx_offset]}),
        "leave": world.json("POST", f"/groups/{group}/heartbeat", leave),
    }
    for name, request in rng.sample(sorted(calls.items()), len(calls)):
        answer = world.until_answered(rng, request, seconds=10)
        if isinstance(answer, Response) and answer.status < 500:
            where = f"{name} of the former process of an instance in {group}"
            check(
                "J-epoch",
                code_of(answer) == _TAKEN_OVER,
                where,
                "409 40935",
                f"{answer.status} {answer.body[:200]!r}",
            )
    last = new.beat(rng)
    if last is not None and last.status < 500:
        is_there = last.status == 200 and new.assigned == new.owned
        check(
            "J-one-owner",
            is_there,
            f"heartbeat of the new process in {group}",
            f"200, owner of {set(new.owned)}",
            last.body[:200],
        )
    _leave(world, rng, [new])
