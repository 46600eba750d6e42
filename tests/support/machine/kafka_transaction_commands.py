"""Random commands about transactional ids of Kafka clients, from correct, late and fenced clients."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from milena.model.types import WallMs
from raft_meta.machine import commands as c
from raft_meta.machine.image import Image, KafkaTransactionalId, PartitionKey, TransactionExtent
from tests.support.machine.group_commands import GROUPS, GroupSource

NAMES = ("p", "tx1", "tx2", "tx3")
"""The first is also a name of HTTP producers."""

Maker = Callable[[Image], c.Command]


@dataclass
class KafkaTransactionSource:
    """Generates the next command for an image."""

    rng: Random

    def next(self, image: Image) -> c.Command:
        makers: list[tuple[int, Maker]] = [
            (2, self._init),
            (6, self._enlist),
            (5, self._end),
            (1, self._forget),
        ]
        weights = [weight for weight, _ in makers]
        return self.rng.choices([maker for _, maker in makers], weights)[0](image)

    def _sometimes(self, share: float) -> bool:
        return self.rng.random() < share

    def _row(self, image: Image) -> KafkaTransactionalId | None:
        rows = [image.transactional_ids[name] for name in sorted(image.transactional_ids)]
        return self.rng.choice(rows) if rows else None

    def _init(self, image: Image) -> c.Command:
        row = self._row(image)
        name = self.rng.choice(NAMES) if row is None or self._sometimes(0.5) else row.name
        known = image.transactional_ids.get(name)
        has_id = known is not None and self._sometimes(0.5)
        return c.InitTransactionalId(
            name=name,
            timeout_ms=self.rng.choice(
                [1_000, 60_000, 0, 900_001] if self._sometimes(0.1) else [9]
            ),
            producer_id=known.producer_id if known and has_id else -1,
            producer_epoch=known.producer_epoch - self.rng.choice([0, 0, 1, 2])
            if known and has_id
            else -1,
            principal=self.rng.choice(["", "User:ann"]),
        )

    def _enlist(self, image: Image) -> c.Command:
        count = self.rng.choice([1, 1, 3])
        return c.EnlistInTransactions(enlistments=tuple(self._one(image) for _ in range(count)))

    def _one(self, image: Image) -> c.Enlistment:
        row = self._row(image)
        groups = tuple(self.rng.sample(GROUPS, self.rng.choice([0, 0, 1])))
        offsets: tuple[c.GroupCommit, ...] = ()
        if self._sometimes(0.3):
            # Mostly of a group that is enlisted.
            named = groups or (row.groups if row is not None else ()) or GROUPS
            offsets = (GroupSource(self.rng).one_commit(image, self.rng.choice(named)),)
        return c.Enlistment(
            name="tx1" if row is None else row.name,
            producer_id=(1 if row is None else row.producer_id) + self._sometimes(0.05),
            producer_epoch=(0 if row is None else row.producer_epoch)
            + self.rng.choice([0] * 9 + [-1, 1]),
            partitions=self._partitions(image),
            groups=groups,
            offsets=offsets,
        )

    def _partitions(self, image: Image) -> tuple[PartitionKey, ...]:
        keys = sorted(image.partitions)
        chosen = self.rng.sample(keys, min(len(keys), self.rng.randint(0, 2)))
        if self._sometimes(0.03):
            chosen.append(("f" * 32, 0))
        return tuple(chosen)

    def _end(self, image: Image) -> c.Command:
        ends = [end for _ in range(self.rng.choice([1, 1, 2])) if (end := self._one_end(image))]
        if ends and self._sometimes(0.2):
            ends.append(replace(self.rng.choice(ends), is_commit=False, extents=()))
        return c.EndTransactions(ends=tuple(ends))

    def _one_end(self, image: Image) -> c.TransactionEnd | None:
        row = self._row(image)
        if row is None:
            return None
        own = image.producers[image.producer_names[row.name]]
        is_commit = self._sometimes(0.7)
        written = row.partitions if is_commit else ()
        if written and self._sometimes(0.3):
            written = written[1:]
        if is_commit and self._sometimes(0.02):
            written = tuple(sorted(image.partitions))[:3]
        version = row.version - self._sometimes(0.1)
        return c.TransactionEnd(
            producer_id=own.producer_id,
            producer_epoch=own.producer_epoch - self._sometimes(0.15),
            is_commit=is_commit,
            is_keyed=False,
            extents=tuple(
                TransactionExtent(
                    topic_id=topic_id,
                    partition=partition,
                    base_offset=-1,
                    end_offset=self.rng.randint(51, 100),
                )
                for topic_id, partition in written
            ),
            offsets=(),
            version=-1 if self._sometimes(0.15) else version,
            raises_client=self._sometimes(0.3),
        )

    def _forget(self, image: Image) -> c.Command:
        row = self._row(image)
        return c.ForgetProducers(
            producer_ids=() if row is None else (image.producer_names[row.name],),
            unused_since_ms=WallMs(max(0, image.now_ms - self.rng.randint(0, 3))),
        )
