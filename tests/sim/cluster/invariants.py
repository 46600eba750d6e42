"""The invariants that must hold after every event, checked inside the nodes.

After each callback of a node that may have changed them, its replicas and its Raft core are compared with their earlier
state. Each change is checked:
- Raft: at most one leader per term; a vote survives a crash; an entry that was applied on a node is the same on all
  nodes; images at the same index are byte-identical.
- Partitions: at most one leader per leader epoch. A leader's high watermark never falls, and every member of the
  committed isr has stored the records below it. Records below any high watermark are recorded here; no replica's high
  watermark may pass other records. A recorded record is neither replaced nor truncated.
- A damaged copy is never read, and a copy in sync is never removed.

``check_replicas`` runs after every event that assigned an attribute of a part of a replica (``platform.WATCHED``), even
if the value stayed the same. ``check_core`` runs after every event of a Raft core's thread. Records are compared when a
high watermark moves, and all records at the end.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from milena.model.batch.decode import decode_columns, iterate_batches, offsets_of
from milena.model.batch.header import STAMP_BYTES
from milena.model.errors import CorruptBatchError
from milena.model.types import ReplicaHealth
from node.replica.leader import PartitionLeader
from node.replica.runner import PartitionRunner
from raft_meta.machine.image import Image, Partition, PartitionKey
from tests.sim.cluster.digests import ImageDigest
from tests.sim.cluster.history import decoded

if TYPE_CHECKING:
    from tests.sim.cluster.machine import NodeProcess
    from tests.sim.cluster.world import World

READ_BYTES = 1 << 20
TOMBSTONE = ""
"""The mark of an offset without a value in a ledger; clients write no empty values."""


class ViolationError(Exception):
    """An invariant is broken."""


class Seen(NamedTuple):
    """The state of a replica after an event."""

    leader_epoch: int
    is_leader: bool
    high_watermark: int
    log_start: int
    log_end: int
    stored_end: int
    is_sound: bool


_NO_CORE: tuple[object, ...] = ()

UNSEEN = Seen(-1, False, 0, 0, 0, 0, True)


class _Watch:
    """A replica, and its state after the previous event, to see what has changed."""

    __slots__ = (
        "compaction",
        "config",
        "flushing",
        "high_watermark",
        "key",
        "leader",
        "leader_epoch",
        "limit",
        "log",
        "log_end",
        "log_start",
        "mark",
        "meta",
        "replica",
        "runner",
        "state",
        "synced_end",
    )

    def __init__(self, key: PartitionKey, runner: PartitionRunner) -> None:
        self.key = key
        self.runner = runner
        log = self.log = runner.log
        self.state = log.state
        self.flushing = log.flushing
        self.replica = log.replica
        self.compaction = log.compaction
        self.take()
        # Its state is not known yet.
        self.leader_epoch: int | None = None

    def has_moved(self) -> bool:
        """Return whether an attribute is now another object; only attributes behind properties are compared."""
        log = self.log
        return not (
            self.runner.leader is self.leader
            and self.limit.high_watermark is self.high_watermark
            and self.state.end_offset is self.log_end
            and self.flushing.synced_end is self.synced_end
            and self.runner.leader_epoch is self.leader_epoch
            and self.state.start_offset is self.log_start
            and self.replica.meta is self.meta
            and self.compaction._mark is self.mark
            and log.state.config is self.config
        )

    def take(self) -> None:
        """Remember the present state."""
        runner, log = self.runner, self.log
        self.leader_epoch = runner.leader_epoch
        leader = self.leader = runner.leader
        self.limit = runner._following if leader is None else leader
        self.high_watermark = self.limit.high_watermark
        self.log_start = self.state.start_offset
        self.log_end = self.state.end_offset
        self.synced_end = self.flushing.synced_end
        self.config = log.state.config
        self.meta = self.replica.meta
        self.mark = self.compaction._mark


class _Runners(dict[PartitionKey, PartitionRunner]):
    """The replicas of a node; adding or removing one counts as a change."""

    def __init__(
        self, process: "NodeProcess", runners: Mapping[PartitionKey, PartitionRunner]
    ) -> None:
        super().__init__(runners)
        self._process = process

    def __setitem__(self, key: PartitionKey, runner: PartitionRunner) -> None:
        super().__setitem__(key, runner)
        self._process.is_touched = True

    def pop(self, *arguments: Any) -> Any:
        self._process.is_touched = True
        return super().pop(*arguments)

    def __delitem__(self, key: PartitionKey) -> None:
        super().__delitem__(key)
        self._process.is_touched = True


@dataclass(slots=True)
class Ledger:
    """The committed records of one partition. ``batches`` has the checksum of each batch, by offset."""

    batches: dict[int, int] = field(default_factory=dict)
    values: dict[int, str] = field(default_factory=dict)
    end: int = 0
    known_end: int = 0
    """The end of the records that could be read. It is below ``end`` only if the one copy at hand has a flipped bit."""
    leaders: dict[int, int] = field(default_factory=dict)
    """The leader of each leader epoch."""
    keys: dict[int, bytes | None] = field(default_factory=dict)
    """The key of each record, by offset."""
    contents: dict[int, bytes] = field(default_factory=dict)
    """The batch at each base offset, without its leader's fields, that was compared last and is the same."""


class Checker:
    """Checks every node of a run."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.ledgers: dict[PartitionKey, Ledger] = {}
        self.stored: dict[tuple[int, PartitionKey], int] = {}
        """Stored end of each partition on each node, as of its last run."""
        self.leaders: dict[int, tuple[int, int]] = {}
        """The leader of each Raft term, as (node, incarnation)."""
        self.votes: dict[tuple[int, int], int] = {}
        """The vote of each (node, term)."""
        self.commands: dict[int, int] = {}
        self.images: dict[int, int] = {}
        self.lost_at = 0
        """The index of the newest image when the victim lost its data."""
        self._newest = Image()
        """The newest of all images that were ever applied."""
        self._watches: dict[int, list[_Watch]] = {}
        """The replicas of each incarnation, in order."""
        self._cores: dict[int, tuple[object, ...]] = {}
        """The state of each incarnation's Raft core after the previous event."""
        self._digests: dict[int, ImageDigest] = {}
        self._replicas: dict[int, dict[PartitionKey, tuple[PartitionRunner, Seen]]] = {}

    # The start and the end of a node.

    def on_start(self, process: "NodeProcess") -> None:
        """Watch a node that was built and is about to start."""
        self._watches[process.incarnation] = []
        self._digests[process.incarnation] = ImageDigest()
        self._replicas[process.incarnation] = {}
        node = process.node
        assert node is not None
        node.replicas.runners = _Runners(process, node.replicas.runners)
        machine = node._machine
        apply, restore = machine.apply, machine.restore

        def watched_apply(index: int, command: bytes) -> bytes:
            response = apply(index, command)
            self._on_applied(process, index, command, machine.image)
            return response

        def watched_restore(chunks: object) -> None:
            restore(chunks)  # type: ignore[arg-type]
            self._on_image(process, machine.image)

        machine.apply = watched_apply  # type: ignore[method-assign]
        machine.restore = watched_restore  # type: ignore[method-assign]

    def on_end(self, process: "NodeProcess") -> None:
        """Forget a node whose process has ended."""
        for known in (self._watches, self._cores, self._digests):
            known.pop(process.incarnation, None)
        self._replicas.pop(process.incarnation, None)

    def on_wipe(self, node_id: int) -> None:
        """Note that a machine lost its directory."""
        for key in [key for key in self.stored if key[0] == node_id]:
            del self.stored[key]
        self.on_raft_loss(node_id)

    def on_raft_loss(self, node_id: int) -> None:
        """Note that a machine lost its Raft folder: when it is back, it spends its vote of that term on itself."""
        for key in [key for key in self.votes if key[0] == node_id]:
            del self.votes[key]

    # The metadata.

    def _on_applied(self, process: "NodeProcess", index: int, command: bytes, image: Image) -> None:
        digest = zlib.crc32(command)
        if self.commands.setdefault(index, digest) != digest:
            self._broken(f"{process.name} applied another command at index {index}")
        self._on_image(process, image)

    def _on_image(self, process: "NodeProcess", image: Image) -> None:
        digest = self._digests[process.incarnation].of(image)
        if self.images.setdefault(image.index, digest) != digest:
            self._broken(f"{process.name} has another image at index {image.index}")
        if image.index > self._newest.index:
            self._newest = image
            for key, state in image.partitions.items():
                self._check_isr(image, key, state)
            for part in self._world.parts:
                try:
                    part.check_image(image)
                except ViolationError as violation:
                    self._broken(str(violation))

    def _check_isr(self, image: Image, key: PartitionKey, state: Partition) -> None:
        """Check that members of the isr have a replica and, unless in doubt, all committed records."""
        if not set(state.isr) <= set(state.replicas) or state.leader not in (None, *state.replicas):
            self._broken(f"in sync or leader without a replica: partition {key} {state}")
        committed = self.ledgers.setdefault(key, Ledger()).end
        doubtful = {suspect.broker_id for suspect in state.suspects}.union(state.damaged)
        for member in set(state.isr) - doubtful:
            stored = self.stored.get((member, key), 0)
            if stored < committed and self._should_have(image, member, key):
                self._broken(
                    f"partition {key[1]} epoch {state.leader_epoch}: {member} is in the isr {state.isr} "
                    f"with {stored} stored, and {committed} is committed"
                )

    def _should_have(self, image: Image, member: int, key: PartitionKey) -> bool:
        """Return whether a member must have all committed records; one that lost data must not count before it has."""
        if any(part.is_rotten(member, key) for part in self._world.parts):
            return False
        if not self._world.faults.has_lost(member):
            return True
        broker = image.brokers[member]
        return not broker.is_fenced and broker.broker_epoch > self.lost_at

    def on_loss(self) -> None:
        """Note that the victim is about to lose its data."""
        self.lost_at = self._newest.index

    def _broken(self, what: str) -> None:
        # Do not raise here: inside production code, the exception would become the node's.
        self._world.fail(what)

    # After every event.

    def check_replicas(self, process: "NodeProcess") -> None:
        """Check the changes in a node's replicas."""
        node = process.node
        if node is None:
            return
        watches = self._watches[process.incarnation]
        runners = node.replicas.runners
        if len(watches) != len(runners):
            watches = self._watch_anew(process, runners)
        for runner, watch in zip(runners.values(), watches, strict=True):
            if runner is not watch.runner:
                # The replica was removed and created again between two events.
                self._watch_anew(process, runners)
                self.check_replicas(process)
                return
            if watch.has_moved():
                self._look_at_former_leader(process, watch)
                self._look(process, watch.key, runner)
                watch.take()

    def _watch_anew(
        self, process: "NodeProcess", runners: Mapping[PartitionKey, PartitionRunner]
    ) -> "list[_Watch]":
        """Watch the present replicas, after one was added or removed."""
        self._forget_removed(process, runners)
        former = {watch.runner: watch for watch in self._watches[process.incarnation]}
        watches = [former.get(runner) or _Watch(key, runner) for key, runner in runners.items()]
        self._watches[process.incarnation] = watches
        return watches

    def _look_at_former_leader(self, process: "NodeProcess", watch: _Watch) -> None:
        """Check the last rise of a leader's high watermark, if the leadership ended in the same event.

        A leader takes in the end of its own sync before it takes the role of a new image, and before it closes. It
        does so in one event. The sync may have been the last one that a commit waited for. After the event, the replica
        has the new high watermark, but does not lead. So read it from the leader object of the event before.

        ``_check_members`` compares nothing if a newer leader epoch is known. So also check that the former leader knew
        a position from each replica that it had to count. A high watermark above that of the leader object is noticed
        as any follower's that is too high.
        """
        key, runner, leader = watch.key, watch.runner, watch.leader
        if leader is None or leader.high_watermark <= watch.high_watermark:
            return
        if runner.leader is not None:
            # It still leads, perhaps in a later epoch: ``_look`` checks what it has.
            return
        log = runner.log
        _, before = self._replicas[process.incarnation][key]
        where = f"node {process.machine.node_id} partition {key[1]} epoch {leader.leader_epoch}"
        ends = {member: progress.stored_end for member, progress in leader.followers.items()}
        ends[leader.broker_id] = leader.stored_end
        for member in sorted(leader.isr.union(*(p.broker_ids for p in leader.outstanding))):
            if ends.get(member, 0) < leader.high_watermark:
                raise ViolationError(
                    f"{where}: high watermark {leader.high_watermark}, but the leader knew that member {member} has"
                    f" stored {ends.get(member)}"
                )
        if runner.is_closed or log.log_end_offset < leader.high_watermark:
            # The new role has already closed or cut the log. The next copy that gets here shows the records.
            ledger = self.ledgers[key]
            ledger.end = max(ledger.end, leader.high_watermark)
            return
        then = Seen(
            leader.leader_epoch,
            True,
            leader.high_watermark,
            log.log_start_offset,
            log.log_end_offset,
            log.stored_end_offset,
            before.is_sound,
        )
        self._check_replica(process, key, runner, leader, before, then)
        self._replicas[process.incarnation][key] = runner, then

    def _look(self, process: "NodeProcess", key: PartitionKey, runner: PartitionRunner) -> None:
        log, leader = runner.log, runner.leader
        now = Seen(
            runner.leader_epoch,
            leader is not None,
            runner.high_watermark,
            log.log_start_offset,
            log.log_end_offset,
            log.stored_end_offset,
            log.health is ReplicaHealth.SOUND,
        )
        replicas = self._replicas[process.incarnation]
        former, before = replicas.get(key, (runner, UNSEEN))
        if former is not runner:
            # The replica was removed and created again between two events.
            before = UNSEEN
        if now != before:
            self._check_replica(process, key, runner, leader, before, now)
            replicas[key] = runner, now
        for part in self._world.parts:
            part.check_replica(process, key, runner)

    def _forget_removed(
        self, process: "NodeProcess", runners: Mapping[PartitionKey, PartitionRunner]
    ) -> None:
        """Forget replicas that moved away: their stored records count no more."""
        me = process.machine.node_id
        for watch in self._watches[process.incarnation]:
            if watch.key not in runners:
                self._replicas[process.incarnation].pop(watch.key, None)
                self.stored.pop((me, watch.key), None)
                state = self._newest.partitions.get(watch.key)
                if state is not None and me in state.isr:
                    raise ViolationError(
                        f"node {me} removes partition {watch.key[1]} epoch {state.leader_epoch}, and is in the"
                        f" isr {state.isr}"
                    )

    def check_core(self, process: "NodeProcess") -> None:
        """Check the changes in a node's Raft core."""
        node = process.node
        if node is None:
            return
        driver = node.quorum._driver
        core = driver.core
        if core is None:
            return
        library, wal = core.library, core.wal
        raft, before = library._core, self._cores.get(process.incarnation, _NO_CORE)
        traces = (
            raft._SyncObj__raftState,
            raft._SyncObj__raftCurrentTerm,
            wal.voted_for,
            wal.term,
            driver._is_scheduled,
        )
        if traces == before:
            return
        self._cores[process.incarnation] = traces
        me = process.machine.node_id
        if library.is_leader:
            leader = (me, process.incarnation)
            if self.leaders.setdefault(library.term, leader) != leader:
                raise ViolationError(
                    f"two Raft leaders in term {library.term}: {leader}, {self.leaders[library.term]}"
                )
        vote = wal.voted_for
        # Between two ticks, all promised messages have been sent.
        if vote is not None and not driver._is_scheduled:
            given = self.votes.setdefault((me, wal.term), vote)
            if given != vote:
                raise ViolationError(
                    f"node {me} voted for {vote} in term {wal.term}, and for {given} before"
                )

    def _check_replica(
        self,
        process: "NodeProcess",
        key: PartitionKey,
        runner: PartitionRunner,
        leader: PartitionLeader | None,
        before: Seen,
        now: Seen,
    ) -> None:
        me = process.machine.node_id
        ledger = self.ledgers.setdefault(key, Ledger())
        self.stored[me, key] = now.stored_end
        where = f"node {me} partition {key[1]} epoch {now.leader_epoch}"
        if leader is not None:
            known = ledger.leaders.setdefault(now.leader_epoch, me)
            if known != me:
                raise ViolationError(f"{where}: node {known} led in this epoch")
            is_same = before.is_leader and before.leader_epoch == now.leader_epoch
            if is_same and now.high_watermark < before.high_watermark:
                raise ViolationError(
                    f"{where}: high watermark fell from {before.high_watermark} to {now.high_watermark}"
                )
            is_small = len(leader.isr) < runner.settings.min_insync_replicas
            is_taken = is_same and is_small and now.log_end > before.log_end
            if is_taken and not any(part.takes_short(key) for part in self._world.parts):
                raise ViolationError(f"{where}: took a write with too few in sync")
        if now.high_watermark > now.log_end:
            raise ViolationError(
                f"{where}: high watermark {now.high_watermark} above the log end {now.log_end}"
            )
        if now.high_watermark > before.high_watermark:
            if leader is not None and now.high_watermark > ledger.end:
                # A former leader did not have the present settings yet.
                is_present = leader is runner.leader
                min_insync = (
                    runner.settings.min_insync_replicas if is_present else leader.min_insync
                )
                self._check_members(where, key, leader, min_insync, now)
            self._record(where, me, ledger, runner, now)
        if now.stored_end < before.stored_end:
            self._check_truncation(where, me, key, before, now)

    def _check_members(
        self, where: str, key: PartitionKey, leader: PartitionLeader, min_insync: int, now: Seen
    ) -> None:
        """Check that every member that may be elected has the records below the high watermark."""
        if len(leader.isr) < min_insync:
            raise ViolationError(f"{where}: committed with an isr of {sorted(leader.isr)}")
        # Use the newest image that any node applied: a node that gave up its replica by it may be down again.
        state = self._newest.partitions.get(key)
        if state is None or state.leader_epoch != now.leader_epoch:
            return
        for member in state.isr:
            stored = self.stored.get((member, key), 0)
            if stored < now.high_watermark and not self._world.faults.has_lost(member):
                raise ViolationError(
                    f"{where}: high watermark {now.high_watermark}, but isr member {member} has stored {stored}"
                )

    def _record(
        self, where: str, me: int, ledger: Ledger, runner: PartitionRunner, now: Seen
    ) -> None:
        """Check that the records below this high watermark are those below all others; record new ones."""
        if runner.log.health is ReplicaHealth.DAMAGED:
            return
        offset = max(now.log_start, min(ledger.known_end, now.high_watermark))
        if not now.is_leader and now.high_watermark > ledger.end:
            raise ViolationError(
                f"{where}: a follower's high watermark {now.high_watermark} is above every leader's, {ledger.end}"
            )
        ledger.end = max(ledger.end, now.high_watermark)
        while offset < now.high_watermark:
            data = runner.log.read_span(offset, max_bytes=READ_BYTES, end_offset=now.high_watermark)
            if not data:
                raise ViolationError(f"{where}: nothing at {offset} below the high watermark")
            try:
                offset = self._compare(
                    where,
                    ledger,
                    data,
                    now.high_watermark,
                    is_compacted=runner.settings.is_compacted,
                )
            except CorruptBatchError:
                # Only this checker has read the damaged bytes so far. Read them from the next copy that gets here.
                if not self._world.faults.has_lost(me):
                    raise
                return
        ledger.known_end = max(ledger.known_end, now.high_watermark)

    def _compare(
        self, where: str, ledger: Ledger, data: bytes, end: int, *, is_compacted: bool
    ) -> int:
        """Compare batches with the committed ones; return the offset after them."""
        next_offset = -1
        for position, header in iterate_batches(data):
            batch = data[position + STAMP_BYTES : position + header.batch_bytes]
            next_offset = header.next_offset
            if next_offset <= end and ledger.contents.get(header.base_offset) == batch:
                # The same bytes were compared before.
                continue
            digest = zlib.crc32(batch)
            columns = decode_columns(data, header, position, bytes_max=READ_BYTES)
            keys = columns.keys or [None] * len(columns.values)
            for offset, key, value in zip(
                offsets_of(header, columns), keys, columns.values, strict=True
            ):
                if offset >= end:
                    continue
                text = TOMBSTONE if value is None else decoded(value)
                is_same = (
                    ledger.values.setdefault(offset, text) == text
                    and ledger.keys.setdefault(offset, key) == key
                )
                # Compaction may have split the batch.
                is_whole = is_compacted or ledger.batches.setdefault(offset, digest) == digest
                if not is_same or not is_whole:
                    raise ViolationError(
                        f"{where}: offset {offset} was committed as {ledger.values[offset]}, is {value!r}"
                    )
            if next_offset <= end:
                ledger.contents[header.base_offset] = batch
        return next_offset

    def _check_truncation(
        self, where: str, me: int, key: PartitionKey, before: Seen, now: Seen
    ) -> None:
        """Check that a sound replica keeps all records that it knows to be committed; an electable one, all."""
        if not (now.is_sound and before.is_sound):
            return
        end = self.ledgers[key].end
        state = self._newest.partitions.get(key)
        if state is not None and me not in (*state.isr, *state.settled) and now.stored_end == 0:
            # The copy is being added to the partition. In a compacted log it starts again with each new leader.
            return
        is_counted = (
            state is not None and me in state.isr and self._should_have(self._newest, me, key)
        )
        kept = end if is_counted else min(before.high_watermark, end)
        if now.stored_end < kept:
            raise ViolationError(
                f"{where}: cut from {before.stored_end} to {now.stored_end}, and {kept} is committed"
            )

    # Methods for the run.

    @property
    def newest_applied(self) -> Image:
        """The newest image that any node ever had, be it dead."""
        return self._newest

    def newest_image(self) -> Image:
        """Return the image of the running node that has applied most."""
        images = [
            m.process.node._machine.image
            for m in self._world.machines.values()
            if m.process is not None and m.process.node is not None
        ]
        return max(images, key=lambda image: image.index, default=Image())

    def runner(self, node_id: int, key: PartitionKey) -> PartitionRunner | None:
        """Return a running node's replica."""
        process = self._world.machines[node_id].process
        if process is None or process.node is None:
            return None
        return process.node.replicas.runners.get(key)

    def on_read(self, who: str, key: PartitionKey, offset: int, value: str) -> None:
        """Check a value that a client read."""
        ledger = self.ledgers.get(key, Ledger())
        if ledger.values.get(offset) != value:
            raise ViolationError(
                f"{who} read {value!r} at {key[1]}/{offset}, where {ledger.values.get(offset)!r} is committed"
            )

    def check_end(self) -> None:
        """Check that all replicas have the same bytes from their largest start on, and that these were committed."""
        for key, state in self.newest_image().partitions.items():
            runners = {replica: self.runner(replica, key) for replica in state.replicas}
            start = max(
                runner.log.log_start_offset for runner in runners.values() if runner is not None
            )
            digests = {}
            for replica, runner in runners.items():
                assert runner is not None
                try:
                    self._check_content(runner)
                    digests[replica] = self._digest(runner, start)
                except CorruptBatchError:
                    # The flipped bit was not read by any node yet. It is a difference from what was written.
                    if not self._world.faults.has_lost(replica):
                        raise
            if len(set(digests.values())) > 1:
                raise ViolationError(f"replicas of partition {key[1]} differ: {digests.keys()}")
        for part in self._world.parts:
            part.check_end()

    def _check_content(self, runner: PartitionRunner) -> None:
        where = f"node {runner.leader_id} partition {runner.partition} at the end"
        ledger = self.ledgers[runner.topic_id, runner.partition]
        offset, end = runner.log.log_start_offset, runner.high_watermark
        is_compacted = runner.settings.is_compacted
        while offset < end:
            data = runner.log.read_span(offset, max_bytes=READ_BYTES)
            offset = self._compare(where, ledger, data, end, is_compacted=is_compacted)

    def _digest(self, runner: PartitionRunner, offset: int) -> int:
        if runner.settings.is_compacted:
            # Each node compacts by itself; the part of the compacted topic checks the result.
            return 0
        digest = 0
        while offset < runner.high_watermark:
            data = runner.log.read_span(offset, max_bytes=READ_BYTES)
            digest = zlib.crc32(data, digest)
            offset = max(header.next_offset for _, header in iterate_batches(data))
        return digest

    def final_values(self, topic_id: str) -> dict[int, dict[int, str]]:
        """Return all committed values of a topic, by partition and offset, including deleted ones."""
        return {key[1]: self.values_of(key) for key in self.ledgers if key[0] == topic_id}

    def values_of(self, key: PartitionKey) -> dict[int, str]:
        """Return all committed values of a partition, by offset, including deleted ones."""
        values = self.ledgers[key].values
        return {at: value for at, value in values.items() if value != TOMBSTONE}

    def summary(self) -> str:
        """Return the state of all nodes, as text."""
        parts = []
        for machine in self._world.machines.values():
            process = machine.process
            if process is None or process.node is None:
                parts.append(f"[{machine.node_id} down]")
                continue
            status = process.node.quorum.status()
            replicas = [
                f"p{key[1]}:{r.role} e{r.leader_epoch} hw{r.high_watermark} end{r.log.log_end_offset} {r.log.health}"
                for key, r in process.node.replicas.runners.items()
            ]
            parts.append(
                f"[{machine.node_id} {status.role} t{status.term} i{status.applied_index} {replicas}]"
            )
        image = self.newest_image()
        states = [f"p{k[1]} {p}" for k, p in image.partitions.items()]
        brokers = [f"b{b.broker_id} fenced={b.is_fenced}" for b in image.brokers.values()]
        return " ".join([*parts, *states, *brokers])
