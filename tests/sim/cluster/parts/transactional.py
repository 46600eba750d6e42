"""Topics with transactions, and with writers outside of transactions.

Promises: a transaction takes effect as a whole or not at all, and once. A reader of committed records gets all of them
and no others, on any replica. The end of a transaction never changes, and every log gets one marker for it, after its
last record. Group offsets are committed with it. The last stable offset never falls, and is the end of the decided part
of a log. A client's response about the end of a transaction is true. At the end no transaction is open.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from http_api.ports.node import NewTopic
from milena.model.batch.decode import decode_columns, iterate_batches, offsets_of
from milena.model.batch.header import BatchHeader
from milena.model.errors import CorruptBatchError, CorruptLogError
from milena.model.types import ReplicaHealth
from node.replica.runner import PartitionRunner
from raft_meta.machine.image import Image, PartitionKey
from raft_meta.machine.transactions import LEVEL, SHARED_KEYS_LEVEL
from storage.log.reader import without_aborted
from tests.sim.cluster.history import decoded
from tests.sim.cluster.invariants import READ_BYTES, ViolationError
from tests.sim.cluster.parts.part import Part
from tests.sim.cluster.parts.transaction_twin import Chronicle, Identity
from tests.sim.cluster.parts.transactional_clients import TransactionalClients
from tests.sim.cluster.parts.transactional_work import PLACES, Work

if TYPE_CHECKING:
    from tests.sim.cluster.machine import NodeProcess
    from tests.sim.cluster.world import World

LEVEL_S = 30.0
"""The seconds within which all nodes are known to have a release with transactions."""


class TransactionalTopics(Part):
    """The topics, and the checks; see the module."""

    level = LEVEL

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.clients: TransactionalClients = TransactionalClients(world)
        self.chronicles = self.clients.chronicles
        self.decisions = self.clients.decisions
        self.committed = self.aborted = 0
        """The numbers of committed and of aborted transactions with records."""
        self._sharers: Counter[Identity] = Counter()
        """The number of requests for each transaction with records."""
        self._keyed: Counter[Identity] = Counter()
        """The number of requests with a key, by transaction."""
        self._moved: dict[tuple[str, int], int] = {}
        """The index of the image in which each (group, next offset) was first seen."""
        self._offsets = Image().offsets
        self._stable: dict[PartitionKey, dict[PartitionRunner, tuple[int, int]]] = {}
        """The latest high watermark and last stable offset of each replica."""

    def topic(self) -> NewTopic:
        # Numbered batches have timestamps of 1970; retention must not delete them.
        return self._topic("ledger", 2, {"retention.ms": "-1"})

    def _topic(self, name: str, partitions: int, configs: dict[str, str]) -> NewTopic:
        return NewTopic(
            name=name,
            partition_count=partitions,
            replication_factor=min(3, len(self.world.node_ids)),
            configs={"min.insync.replicas": "2", "segment.ms": "500", **configs},
        )

    def _stock(self) -> NewTopic:
        configs = {"retention.ms": "-1"}
        if self.clients.is_compacting:
            configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        return self._topic("stock", 1, configs)

    async def prepare(self) -> None:
        world = self.world
        await world.until(
            lambda: world.checker.newest_image().feature_level >= LEVEL,
            LEVEL_S,
            "no transactions: the feature level does not rise",
        )
        await super().prepare()
        topic_ids = {
            "ledger": self.clients.topic_id,
            "stock": await world.create(self._stock()),
        }
        for topic, partition in PLACES:
            key = topic_ids[topic], partition
            self.chronicles[key], self._stable[key] = Chronicle(key), {}
        self.clients.topic_ids = topic_ids

    # Changes.

    def check_image(self, image: Image) -> None:
        for key, identity in self.decisions.take(image):
            chronicle = self.chronicles[key]
            if identity not in chronicle.markers and not self._is_behind(key):
                raise ViolationError(f"the log of {key} is said to have a marker of {identity}")
        if image.offsets is not self._offsets:
            self._offsets = image.offsets
            for group, offsets in image.offsets.items():
                for committed in offsets.values():
                    self._moved.setdefault((group, committed.offset), image.index)

    def _moves_of(self, group: str) -> set[int]:
        """Return the indexes of the images in which an offset of the group moved."""
        return {index for (moved, _), index in self._moved.items() if moved == group}

    def _is_behind(self, key: PartitionKey) -> bool:
        """Return whether the only copy at hand could not be read."""
        ledger = self.world.checker.ledgers.get(key)
        return ledger is not None and self.chronicles[key].end < ledger.end

    def check_replica(
        self, process: "NodeProcess", key: PartitionKey, runner: PartitionRunner
    ) -> None:
        chronicle = self.chronicles.get(key)
        # A replica that closes stops leading, and resets its high watermark.
        if chronicle is None or runner.is_closed or runner.log.health is ReplicaHealth.DAMAGED:
            return
        self._extend(process.machine.node_id, chronicle, runner)
        self._check_claims(chronicle)
        high_watermark = runner.high_watermark
        if high_watermark > chronicle.end:
            return
        where = f"{process.name} {key} epoch {runner.leader_epoch}"
        end, highest = runner.stable_end, chronicle.stable_end(chronicle.end)
        # A restarted replica may know markers above the high watermark that it remembers.
        least = chronicle.stable_end(high_watermark)
        if not least <= end <= min(high_watermark, highest):
            raise ViolationError(
                f"{where}: stable up to {end}, not {least} to {min(high_watermark, highest)}"
            )
        former_watermark, former = self._stable[key].get(runner, (0, 0))
        if high_watermark >= former_watermark and end < former:
            raise ViolationError(f"{where}: the last stable offset fell from {former} to {end}")
        self._stable[key][runner] = high_watermark, end
        if runner.log.log_start_offset > highest:
            raise ViolationError(
                f"{where}: starts at {runner.log.log_start_offset}, decided up to {highest}"
            )

    def _check_claims(self, chronicle: Chronicle) -> None:
        for offset, claim in self.clients.claims.pop(chronicle.key, {}).items():
            if not chronicle.is_decided(offset) and not self._is_behind(chronicle.key):
                raise ViolationError(f"{chronicle.key} at {offset} is not visible: {claim}")

    def _extend(self, node_id: int, chronicle: Chronicle, runner: PartitionRunner) -> None:
        while chronicle.end < runner.high_watermark:
            try:
                span = runner.log.read_span(
                    chronicle.end, max_bytes=READ_BYTES, end_offset=runner.high_watermark
                )
                headers = [header for _, header in iterate_batches(span)]
            except (CorruptBatchError, CorruptLogError):
                # Read these records from the next copy that gets here.
                if not self.world.faults.has_lost(node_id):
                    raise
                return
            self._check_keys(headers)
            chronicle.extend(headers, self.decisions.by_identity)

    def _check_keys(self, headers: Sequence[BatchHeader]) -> None:
        """Check that keys in the newer encoding are written only if no node of an earlier release may exist."""
        if self.world.checker.newest_image().feature_level >= SHARED_KEYS_LEVEL:
            return
        for header in headers:
            if any(key.places for key in header.request_keys):
                raise ViolationError(f"keys share a batch below their level: {header.request_keys}")

    def takes_short(self, key: PartitionKey) -> bool:
        # Leaders write markers with acks=1, like the clients that request only one replica.
        return key in self.chronicles

    # The final checks.

    def is_settled(self) -> bool:
        if self.world.checker.newest_image().ending:
            return False
        return not any(
            runner is None
            or runner.log.writers.transactions.open
            or runner.stable_end < runner.high_watermark
            for _, runner in self._replicas()
        )

    def _replicas(self) -> list[tuple[int, PartitionRunner | None]]:
        image = self.world.checker.newest_image()
        return [
            (node_id, self.world.checker.runner(node_id, key))
            for key in self.chronicles
            for node_id in image.partitions[key].replicas
        ]

    def check_end(self) -> None:
        for node_id, runner in self._replicas():
            assert runner is not None
            chronicle = self.chronicles[runner.topic_id, runner.partition]
            self._extend(node_id, chronicle, runner)
        if any(self._is_behind(key) for key in self.chronicles):
            raise ViolationError("no copy is whole")
        for node_id, runner in self._replicas():
            assert runner is not None
            try:
                self._check_reading(node_id, runner)
            except CorruptBatchError:
                # The flipped bit was not read by any node yet.
                if not self.world.faults.has_lost(node_id):
                    raise
        for key, chronicle in self.chronicles.items():
            self._check_decisions(key, chronicle)
        found = self._found()
        for work in self.clients.works:
            self._judge(work, found)
        shared, keyed = (
            sum(count for count in counts.values() if count > 1)
            for counts in (self._sharers, self._keyed)
        )
        self.world.note(
            f"transactions: {self.committed} committed, {shared} of them shared, {keyed} under keys, "
            f"{self.aborted} aborted, "
            f"{self.clients.most_open} open at a time, {len(self._moved)} offsets"
        )

    def _check_reading(self, node_id: int, runner: PartitionRunner) -> None:
        """Check that readers on every replica get the records that are committed by the log alone."""
        key = (runner.topic_id, runner.partition)
        chronicle, offset = self.chronicles[key], runner.log.log_start_offset
        values = self.world.checker.values_of(key)
        wanted = {
            at: value for at, value in values.items() if at >= offset and chronicle.is_committed(at)
        }
        given: dict[int, str] = {}
        while offset < chronicle.end:
            span = runner.log.read_span(offset, max_bytes=READ_BYTES)
            data = without_aborted(span, runner.log.writers.transactions.aborted)
            for position, header in iterate_batches(data):
                columns = decode_columns(data, header, position, bytes_max=READ_BYTES)
                for at, value in zip(offsets_of(header, columns), columns.values, strict=True):
                    if at >= runner.log.log_start_offset:
                        given[at] = decoded(value or b"")
                offset = header.next_offset
        if runner.settings.is_compacted:
            keys = self.world.checker.ledgers[key].keys
            lasts = {keys[at]: at for at in wanted}
            wanted = {
                at: value for at, value in wanted.items() if at in given or lasts[keys[at]] == at
            }
        if given != wanted:
            raise ViolationError(f"node {node_id} {key} reads {given.items() ^ wanted.items()}")

    def _check_decisions(self, key: PartitionKey, chronicle: Chronicle) -> None:
        for identity in chronicle.firsts:
            if identity not in chronicle.markers:
                raise ViolationError(f"{key}: transaction {identity} is open at the end")
        for identity, decision in self.decisions.by_identity.items():
            if (
                decision.ends is not None
                and key in decision.ends
                and identity not in chronicle.firsts
            ):
                raise ViolationError(f"{key}: nothing of {identity} is there, {decision}")

    def _found(self) -> "dict[str, list[tuple[Identity, int, int]]]":
        """Return, by value, the committed transactions that have it: identity, place, offset."""
        found: dict[str, list[tuple[Identity, int, int]]] = {}
        for place in range(len(PLACES)):
            key = self.clients._key(place)
            chronicle, sent = self.chronicles[key], set()
            for offset, value in self.world.checker.values_of(key).items():
                owner = chronicle.owners.get(offset)
                work = self.clients.by_value.get(value)
                if (owner is None) != (work is None):
                    raise ViolationError(f"{key} at {offset}: {value} of {owner}")
                if owner is None or work is None:
                    continue
                if work.places[value] != place or (owner, value) in sent:
                    raise ViolationError(f"{key} at {offset}: {value} of {owner}, twice or astray")
                sent.add((owner, value))
                if chronicle.is_committed(offset):
                    found.setdefault(value, []).append((owner, place, offset))
        return found

    def _judge(self, work: Work, found: "dict[str, list[tuple[Identity, int, int]]]") -> None:
        """Check the final state of a transaction against its client's responses."""
        what = f"{work.group} {work.places}, named {work.named}, told {work.answers}"
        committed = {value: found[value] for value in work.places if value in found}
        identities = {identity for places in committed.values() for identity, _, _ in places}
        if len(identities) > 1 or any(len(places) > 1 for places in committed.values()):
            raise ViolationError(f"committed twice: {what}: {committed}")
        index = self._moved.get((work.group, work.next_offset))
        if committed and set(committed) != work.named:
            raise ViolationError(f"another part of it is committed: {what}: {committed}")
        has_effect = bool(committed) or index is not None
        if not has_effect and work.is_committed and (work.named or work.next_offset):
            raise ViolationError(f"committed, and not there: {what}")
        if has_effect and (work.is_aborted or not (work.is_committed or work.is_in_doubt)):
            raise ViolationError(f"not committed, and there: {what}: {committed}, {index}")
        if committed and work.next_offset:
            [identity] = identities
            decided = self.decisions.by_identity[identity].index
            # One command may end several transactions. Then the image has only the last of a group's offsets.
            is_replaced = index is None and decided in self._moves_of(work.group)
            if decided != index and not is_replaced:
                raise ViolationError(f"decided in {decided}, its offset moved in {index}: {what}")
        if work.named and not committed and index is not None:
            raise ViolationError(f"its offset moved, and nothing is committed: {what}")
        for value, places in committed.items():
            for _, _, offset in places:
                if work.offsets.get(value, offset) != offset:
                    raise ViolationError(f"{value} is at {offset}: {what}, {work.offsets}")
        self._sharers.update(identities)
        if work.is_keyed:
            self._keyed.update(identities)
        self.committed += bool(committed)
        self.aborted += bool(work.places) and not committed
