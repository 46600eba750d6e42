"""Run command lines against the state machine, for golden scripts; keep brokers' directories like nodes.

After every command the image must keep its invariants and survive a snapshot; every command is encoded and decoded.

    cluster 1,2,3 [level=2]     every command until these brokers are alive, without output
    init 1,2,3 [level=2] | controller 1 | level 2 | check [bad] [late]      check prints what it compares, if anything
    register 1 [dir=d1] [rack=r] [last=4] [features=1..1] [suspect=t-0:3:100,..] [damaged=t-0,..] [forgets]
    unfence 1 | start 1 [as register] | fence 1 [bare] | drain 1 | unregister 1
    elect | elect clean | preferred | shrink | lead t-0 2 isr=2,3 [unclean]
    create t 1,2,3/2,3,1 [config=value ..] | delete t | add t 1,2,3 [count=1] | config t name=value name=
    give-up t-0 2 [leader=1 isr=1,3] [epoch=3] [partition_epoch=0] [unclean]      as planned, or another change
    isr t-0 1,2 [by=1] [leader_epoch=0] [partition_epoch=0] [stale=2] | producer [name]
    move t-0 3,4,5 [max=1] [throttle=100] | start-move t-0 | finish-move t-0 [leader=3] | cancel-move t-0 [leader=1]
    steps | handover      the next steps of all moves, as the controller plans them
    again [incarnation=0] [sequence=1]      the last command once more, or with another number
    principal User:ann | principal      the user of the following commands, without output
    forget-audited 3

``group_scripts`` has the command lines of groups, offsets and consumers, ``transaction_scripts`` those of transactions,
``access_scripts`` those of users, tokens and entries.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypeVar

from milena.model.types import WallMs
from raft_meta.machine import codec, invariants
from raft_meta.machine import commands as c
from raft_meta.machine.apply import apply
from raft_meta.machine.image import (
    AllocatedProducer,
    AuditEntry,
    Broker,
    Image,
    Partition,
    PartitionKey,
    Quota,
    Reassignment,
    ScramCredential,
    Suspect,
    Token,
    User,
)
from raft_meta.machine.marks import ImageMarks
from raft_meta.machine.topics import elections, reassignments
from tests.support.machine import access_scripts as access
from tests.support.machine import group_scripts as groups
from tests.support.machine import transaction_scripts as transactions


@dataclass(frozen=True)
class Line:
    """A command line: its positional and its named words."""

    words: tuple[str, ...]
    named: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> "Line":
        parts = text.split()[1:]
        named = dict(part.split("=", 1) for part in parts if "=" in part)
        return cls(tuple(part for part in parts if "=" not in part), named)


Maker = Callable[[Line], c.Command]


class Ordered(Hashable, Protocol):
    """A key that can be sorted."""

    def __lt__(self, other: Any, /) -> bool: ...


K = TypeVar("K", bound=Ordered)
V = TypeVar("V")


def ids(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word)


class MachineScript:
    """An image, a proposer, and the state of each broker's directory."""

    def __init__(self) -> None:
        self.image = Image()
        self.marks = ImageMarks()
        self.directories: dict[int, tuple[str, int]] = {}
        self.last: c.Envelope | None = None
        self.sequence = 0
        self.topics_made = 0
        self.principal = ""
        self.groups = groups.GroupLines()
        self.transactions = transactions.TransactionLines()

    def execute(self, text: str) -> list[str]:
        verb = text.split(maxsplit=1)[0]
        makers: dict[str, Maker] = {
            "init": lambda line: c.InitCluster(
                cluster_id="cluster",
                voters=ids(line.words[0]),
                feature_level=int(line.named.get("level", 1)),
            ),
            "controller": lambda line: c.ClaimController(broker_id=int(line.words[0])),
            "level": lambda line: c.SetFeatureLevel(feature_level=int(line.words[0])),
            "check": self._check,
            "register": self._register,
            "unfence": self._unfence,
            "fence": self._fence,
            "drain": self._drain,
            "unregister": lambda line: c.UnregisterBroker(broker_id=int(line.words[0])),
            "elect": lambda line: self._elect(
                elections.plan_elections(self.image, with_unclean="clean" not in line.words)
            ),
            "preferred": lambda _: self._elect(elections.plan_preferred(self.image)),
            "shrink": lambda _: self._elect(elections.plan_shrinks(self.image)),
            "lead": self._lead,
            "create": self._create,
            "delete": lambda line: c.DeleteTopic(topic_id=self._topic_id(line.words[0])),
            "add": self._add,
            "config": self._config,
            "isr": self._isr,
            "give-up": self._give_up,
            "move": self._move,
            "start-move": lambda line: self._step(line, reassignments.START),
            "finish-move": lambda line: self._step(line, reassignments.FINISH),
            "cancel-move": lambda line: self._step(line, reassignments.CANCEL),
            "steps": lambda _: self._steps(),
            "handover": lambda _: self._elect(reassignments.plan_steps(self.image).handovers),
            "producer": lambda line: c.AllocateProducer(name=next(iter(line.words), None)),
            "transactional": lambda line: c.AllocateProducer(
                name=line.words[0], is_transactional=True
            ),
            "forget-producers": lambda line: c.ForgetProducers(
                unused_since_ms=WallMs(int(line.words[0])),
                producer_ids=tuple(map(int, line.words[1].split(","))),
            ),
            "correct-time": lambda line: c.CorrectTime(
                controller_epoch=int(line.named.get("epoch", self.image.controller_epoch)),
                now_ms=WallMs(int(line.words[0])),
            ),
            "forget-audited": lambda line: c.ForgetAudited(through=int(line.words[0])),
        }
        line = Line.parse(text)
        if verb == "start":
            return [*self.execute(f"register{text[5:]}"), *self.execute(f"unfence {line.words[0]}")]
        if verb == "cluster":
            init = f"init {line.words[0]} level={line.named.get('level', 1)}"
            for command in (init, "controller 1"):
                self.execute(command)
            for broker_id in ids(line.words[0]):
                self.execute(f"start {broker_id}")
            return []
        if verb == "principal":
            self.principal = next(iter(line.words), "")
            return []
        if verb == "again":
            return self._again(line)
        if verb == "offsets":
            return groups.describe_offsets(self.image, line.words[0])
        if verb == "outcome":
            return transactions.describe_outcome(self.image, line.words)
        if verb in access.VERBS:
            return self.apply(access.command_of(self.image, verb, line.words, line.named))
        lines = self.transactions if verb in transactions.VERBS else self.groups
        if verb in (*transactions.VERBS, *groups.VERBS):
            listed = lines.command(self.image, verb, line.words, line.named)
            return [] if listed is None else self.apply(listed)
        return self.apply(makers[verb](line), remembers="forgets" not in line.words)

    def apply(self, command: c.Command, *, remembers: bool = True) -> list[str]:
        self.sequence += 1
        envelope = c.Envelope(
            proposer=9,
            incarnation=1,
            sequence=self.sequence,
            now_ms=WallMs(1000 + self.sequence),
            command=command,
            principal=self.principal,
        )
        output = self._apply(envelope)
        if isinstance(command, c.RegisterBroker) and remembers:
            epoch = self.image.brokers[command.broker_id].broker_epoch
            self.directories[command.broker_id] = (command.directory_id, epoch)
        return output

    def _apply(self, envelope: c.Envelope) -> list[str]:
        self.last = envelope
        before = self.image
        received = codec.decode_envelope(codec.encode_envelope(envelope))
        assert received == envelope
        applied = apply(before, before.index + 1, received)
        self.image = applied.image
        assert not invariants.violations(self.image)
        assert codec.decode_image(codec.encode_image(self.image)) == self.image
        response = codec.decode_response(applied.response)
        answer = [] if response in {None, ()} else [f"-> {render(response)}"]
        return [*answer, *self._compare(received.command), *differences(before, self.image)]

    def _compare(self, command: c.Command) -> list[str]:
        """Compare images at once, for a check."""
        if not isinstance(command, c.CheckImage):
            return []
        comparison = self.marks.take(command, self.image)
        if comparison is None:
            return ["compares nothing"]
        comparison.judge(codec.image_hash(comparison.image))
        return [f"compares index {comparison.image.index}"]

    def _again(self, line: Line) -> list[str]:
        assert self.last is not None
        numbers: dict[str, Any] = {name: int(value) for name, value in line.named.items()}
        return self._apply(replace(self.last, **numbers))

    # --- commands ---

    def _check(self, line: Line) -> c.Command:
        mark = self.marks.last
        if mark is None:
            return c.CheckImage(index=0, image_hash=b"")
        image_hash = b"bad" if "bad" in line.words else codec.image_hash(mark)
        return c.CheckImage(index=mark.index - ("late" in line.words), image_hash=image_hash)

    def _register(self, line: Line) -> c.Command:
        broker_id = int(line.words[0])
        directory, last = self.directories.get(broker_id, (f"d{broker_id}", -1))
        wanted = line.named.get("dir", directory)
        features = line.named.get("features", f"1..{self.image.feature_level}").split("..")
        return c.RegisterBroker(
            broker_id=broker_id,
            directory_id=wanted,
            last_broker_epoch=int(line.named.get("last", last if wanted == directory else -1)),
            incarnation=1,
            api_url=f"http://broker-{broker_id}:8082",
            peer_host=f"broker-{broker_id}",
            peer_port=7082,
            rack=line.named.get("rack"),
            feature_min=int(features[0]),
            feature_max=int(features[1]),
            was_clean_stop=False,
            reports=tuple(self._reports(line)),
        )

    def _reports(self, line: Line) -> list[c.ReplicaReport]:
        reports = []
        for word in filter(None, line.named.get("damaged", "").split(",")):
            topic_id, partition = self._key(word)
            reports.append((topic_id, partition, True, -1, 0))
        for word in filter(None, line.named.get("suspect", "").split(",")):
            name, epoch, end = word.split(":")
            topic_id, partition = self._key(name)
            reports.append((topic_id, partition, False, int(epoch), int(end)))
        return [
            c.ReplicaReport(
                topic_id=topic_id,
                partition=partition,
                is_damaged=is_damaged,
                last_epoch=epoch,
                log_end_offset=end,
            )
            for topic_id, partition, is_damaged, epoch, end in reports
        ]

    def _epochs(self, line: Line) -> tuple[int, int, int]:
        broker_id = int(line.words[0])
        broker = self.image.brokers.get(broker_id)
        return (
            int(line.named.get("controller_epoch", self.image.controller_epoch)),
            broker_id,
            int(line.named.get("epoch", broker.broker_epoch if broker else 0)),
        )

    def _unfence(self, line: Line) -> c.Command:
        controller_epoch, broker_id, epoch = self._epochs(line)
        return c.UnfenceBroker(
            controller_epoch=controller_epoch, broker_id=broker_id, broker_epoch=epoch
        )

    def _fence(self, line: Line) -> c.Command:
        controller_epoch, broker_id, epoch = self._epochs(line)
        bare = "bare" in line.words
        return c.FenceBroker(
            controller_epoch=controller_epoch,
            broker_id=broker_id,
            broker_epoch=epoch,
            changes=() if bare else elections.plan_fence(self.image, broker_id),
        )

    def _drain(self, line: Line) -> c.Command:
        controller_epoch, broker_id, epoch = self._epochs(line)
        return c.DrainBroker(
            controller_epoch=controller_epoch,
            broker_id=broker_id,
            broker_epoch=epoch,
            changes=elections.plan_drain(self.image, broker_id),
        )

    def _elect(self, changes: tuple[c.LeaderChange, ...]) -> c.Command:
        return c.ElectLeaders(controller_epoch=self.image.controller_epoch, changes=changes)

    def _lead(self, line: Line) -> c.Command:
        topic_id, number = self._key(line.words[0])
        partition = self.image.partitions[topic_id, number]
        change = c.LeaderChange(
            topic_id=topic_id,
            partition=number,
            partition_epoch=int(line.named.get("partition_epoch", partition.partition_epoch)),
            leader=None if line.words[1] == "none" else int(line.words[1]),
            isr=ids(line.named["isr"]),
            is_unclean="unclean" in line.words,
        )
        epoch = int(line.named.get("controller_epoch", self.image.controller_epoch))
        return c.ElectLeaders(controller_epoch=epoch, changes=(change,))

    def _create(self, line: Line) -> c.Command:
        self.topics_made += 1
        return c.CreateTopic(
            topic_id=f"{self.topics_made:032x}",
            name=line.words[0],
            configs=tuple(line.named.items()),
            placement=tuple(ids(row) for row in line.words[1].split("/")),
        )

    def _add(self, line: Line) -> c.Command:
        topic = self.image.topics[self._topic_id(line.words[0])]
        return c.AddPartitions(
            topic_id=topic.topic_id,
            partition_count=int(line.named.get("count", topic.partition_count)),
            placement=tuple(ids(row) for row in line.words[1].split("/")),
        )

    def _config(self, line: Line) -> c.Command:
        return c.AlterConfigs(
            topic_id=self._topic_id(line.words[0]),
            changes=tuple((name, value or None) for name, value in line.named.items()),
        )

    def _isr(self, line: Line) -> c.Command:
        topic_id, number = self._key(line.words[0])
        partition = self.image.partitions[topic_id, number]
        sender = int(line.named.get("by", partition.leader or 0))
        stale = ids(line.named.get("stale", ""))
        members = tuple(
            c.IsrMember(
                broker_id=member,
                broker_epoch=self.image.brokers[member].broker_epoch - (member in stale),
            )
            for member in ids(line.words[1])
        )
        change = c.IsrChange(
            topic_id=topic_id,
            partition=number,
            leader_epoch=int(line.named.get("leader_epoch", partition.leader_epoch)),
            partition_epoch=int(line.named.get("partition_epoch", partition.partition_epoch)),
            isr=members,
        )
        epoch = self.image.brokers[sender].broker_epoch
        return c.AlterIsr(broker_id=sender, broker_epoch=epoch, changes=(change,))

    def _give_up(self, line: Line) -> c.Command:
        key, broker_id = self._key(line.words[0]), int(line.words[1])
        partition = self.image.partitions[key]
        change = elections.plan_give_up(self.image, broker_id, key)
        if "isr" in line.named or change is None:
            change = c.LeaderChange(
                topic_id=key[0],
                partition=key[1],
                partition_epoch=partition.partition_epoch,
                leader=int(line.named["leader"]) if "leader" in line.named else partition.leader,
                isr=ids(line.named["isr"]) if "isr" in line.named else partition.isr,
                is_unclean="unclean" in line.words,
            )
        epoch = int(line.named.get("partition_epoch", change.partition_epoch))
        return c.GiveUpReplicas(
            broker_id=broker_id,
            broker_epoch=int(line.named.get("epoch", self.image.brokers[broker_id].broker_epoch)),
            changes=(replace(change, partition_epoch=epoch),),
        )

    def _move(self, line: Line) -> c.Command:
        topic_id, number = self._key(line.words[0])
        target = c.TargetReplicas(
            topic_id=topic_id,
            partition=number,
            replicas=ids(line.words[1]) if len(line.words) > 1 else (),
            max_concurrent=int(line.named.get("max", 0)),
            throttle_bytes_per_s=int(line.named.get("throttle", 0)),
        )
        return c.ReassignPartitions(targets=(target,))

    def _step(self, line: Line, kind: str) -> c.Command:
        topic_id, number = self._key(line.words[0])
        partition = self.image.partitions[topic_id, number]
        leader = line.named.get("leader", partition.leader or "none")
        step = c.ReassignmentStep(
            topic_id=topic_id,
            partition=number,
            partition_epoch=int(line.named.get("partition_epoch", partition.partition_epoch)),
            kind=kind,
            leader=None if leader == "none" else int(leader),
        )
        return c.StepReassignments(steps=(step,))

    def _steps(self) -> c.Command:
        plan = reassignments.plan_steps(self.image)
        return c.StepReassignments(steps=(*plan.starts, *plan.finishes))

    def _topic_id(self, name: str) -> str:
        return self.image.topic_ids.get(name, "f" * 32)

    def _key(self, text: str) -> PartitionKey:
        name, partition = text.rsplit("-", 1)
        return self._topic_id(name), int(partition)


# --- what changed ---


def differences(before: Image, now: Image) -> list[str]:
    """Return everything that a command changed, by domain.

    Two kinds of changes are left out: those that every command makes (index, clock, proposers), and those that follow
    from others (names, counts, the partitions of a deleted topic).
    """
    return [
        *_cluster_differences(before, now),
        *_map_differences("broker {}".format, before.brokers, now.brokers),
        *_topic_differences(before, now),
        *_partition_differences(before, now),
        *_group_differences(before, now),
        *_map_differences("producer {}".format, before.producers, now.producers),
        *transactions.describe_endings(before, now),
        *_map_differences("user {}".format, before.users, now.users),
        *_map_differences("token {}".format, before.tokens, now.tokens),
        *access.describe_acls(before, now),
        *_map_differences("quota {0[0]}/{0[1]}".format, before.quotas, now.quotas),
        *_map_differences("audit {}".format, before.audited, now.audited),
    ]


def _changed(before: Mapping[K, V], now: Mapping[K, V]) -> list[K]:
    return sorted(key for key in {*before, *now} if before.get(key) != now.get(key))


def _map_differences(
    name: Callable[[K], str], before: Mapping[K, V], now: Mapping[K, V]
) -> list[str]:
    return [changes(name(key), before.get(key), now.get(key)) for key in _changed(before, now)]


def _cluster_differences(before: Image, now: Image) -> list[str]:
    lines = []
    if (before.cluster_id, before.voters) != (now.cluster_id, now.voters):
        lines.append(f"cluster {now.cluster_id}: voters {render(now.voters)}")
    if before.feature_level != now.feature_level:
        lines.append(f"feature_level {before.feature_level} -> {now.feature_level}")
    if (before.controller_id, before.controller_epoch) != (now.controller_id, now.controller_epoch):
        lines.append(f"controller {now.controller_id}: epoch {now.controller_epoch}")
    if before.access_mode != now.access_mode:
        lines.append(f"access_mode {before.access_mode} -> {now.access_mode}")
    if before.access_version != now.access_version:
        lines.append("access changed")
    if before.scram_decoy_key != now.scram_decoy_key:
        lines.append("decoys have a key")
    return lines


def _topic_differences(before: Image, now: Image) -> list[str]:
    lines = []
    for topic_id in _changed(before.topics, now.topics):
        old, new = before.topics.get(topic_id), now.topics.get(topic_id)
        if new is None:
            lines.append(f"topic {before.topics[topic_id].name}: deleted")
        elif old is None:
            lines.append(f"topic {new.name}: created at {new.created_ms}")
        else:
            lines.append(changes(f"topic {new.name}", old, new))
    return lines


def _partition_differences(before: Image, now: Image) -> list[str]:
    return [
        changes(groups.name_of(now, key), before.partitions.get(key), now.partitions.get(key))
        for key in _changed(before.partitions, now.partitions)
        if key[0] in now.topics
    ]


def _group_differences(before: Image, now: Image) -> list[str]:
    lines: list[str] = []
    for group_id in _changed(before.groups, now.groups):
        lines += groups.describe_group(before, now, group_id)
    for group_id in _changed(before.offsets, now.offsets):
        lines.append(groups.describe_commits(before, now, group_id))
    for group_id, instance in _changed(before.consumers, now.consumers):
        lines.append(groups.describe_consumer(now, group_id, instance))
    return lines


SHOWN_OF_NEW = {
    Broker: ("broker_epoch", "is_fenced"),
    Partition: ("leader", "isr", "eligible"),
    AllocatedProducer: ("producer_epoch", "name"),
    User: ("created_index", "verifiers", "is_superuser", "scram"),
    Token: ("user", "user_index", "expires_ms"),
    Quota: ("limits",),
    AuditEntry: ("index", "principal", "action", "change"),
}


def changes(name: str, before: object, after: object) -> str:
    """Return ``name: field old -> new, ..``; for a new object, the fields that describe its state."""
    if after is None:
        return f"{name}: gone"
    if before is None:
        shown = [(field, getattr(after, field)) for field in SHOWN_OF_NEW[type(after)]]
        told = [f"{field} {render(value)}" for field, value in shown if value not in {None, (), ""}]
        return f"{name}: new, " + ", ".join(told)
    changed = [
        f"{field.name} {_field(getattr(before, field.name))} -> {_field(getattr(after, field.name))}"
        for field in fields(after)  # type: ignore[arg-type]  # an image is made of dataclasses
        if getattr(before, field.name) != getattr(after, field.name)
    ]
    return f"{name}: " + ", ".join(changed)


def _field(value: object) -> str:
    return "none" if value == "" else render(value)


def render(value: object) -> str:
    if value is None or value == ():
        return "none"
    if value == "":
        return "taken"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Reassignment):
        state = "started" if value.is_started else "waiting"
        bounds = [value.max_concurrent, value.throttle_bytes_per_s]
        return (
            f"{state}({render(value.former)} to {render(value.target)}; {bounds[0]}, {bounds[1]})"
        )
    if isinstance(value, tuple):
        return ",".join(render(item) for item in value)
    if isinstance(value, ScramCredential):
        return f"{value.mechanism}/{value.iterations}"
    if isinstance(value, Suspect):
        return f"{value.broker_id}@{value.last_epoch}:{value.log_end_offset}"
    if hasattr(value, "items"):
        return "{" + " ".join(f"{name}={text}" for name, text in sorted(value.items())) + "}"
    return str(value)
