"""Random commands about transactions, from correct and late producers and from leaders with markers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from raft_meta.machine import commands as c
from raft_meta.machine.image import Image, TransactionExtent, TransactionKey
from tests.support.machine.group_commands import GROUPS, GroupSource

NAMES = ("p", "q", "milena.transactions.1")
SETTINGS = ("flush.messages", "unclean.leader.election.enable")
"""Settings of a topic with which it accepts no transactions."""

Maker = Callable[[Image], c.Command]


@dataclass
class TransactionSource:
    """Generates the next command for an image."""

    rng: Random

    def next(self, image: Image) -> c.Command:
        makers: list[tuple[int, Maker]] = [
            (3, self._begin),
            (8, self._end),
            (4, self._finish),
            (2, self._config),
        ]
        weights = [weight for weight, _ in makers]
        return self.rng.choices([maker for _, maker in makers], weights)[0](image)

    def _sometimes(self, share: float) -> bool:
        return self.rng.random() < share

    def _begin(self, _: Image) -> c.Command:
        principal = self.rng.choice(["", "User:ann"])
        return c.AllocateProducer(name=self.rng.choice([None, *NAMES]), principal=principal)

    def _end(self, image: Image) -> c.Command:
        ends = [self._one_end(image) for _ in range(self.rng.choice([1, 1, 2, 4]))]
        if self._sometimes(0.2):
            ends.append(replace(self.rng.choice(ends), is_commit=self._sometimes(0.5)))
        return c.EndTransactions(ends=tuple(ends))

    def _one_end(self, image: Image) -> c.TransactionEnd:
        """Return an end of a transaction: mostly of an open one, else of an ended or unknown one."""
        producer = self.rng.choice(
            [image.producers[at] for at in sorted(image.producers)] or [None]
        )
        producer_id = 1 if producer is None or self._sometimes(0.03) else producer.producer_id
        epoch = producer.producer_epoch if producer else 0
        is_commit = self._sometimes(0.8)
        is_bare = not is_commit and self._sometimes(0.9)
        is_keyed = self._sometimes(0.05 if is_bare else 0.3)
        extents = () if is_bare else self._extents(image)
        is_shared = is_keyed and self._sometimes(0.5)
        return c.TransactionEnd(
            producer_id=producer_id,
            producer_epoch=epoch + self.rng.choice([0] * 12 + [-1, -1, -2, 1]),
            is_commit=is_commit,
            is_keyed=is_keyed,
            extents=extents,
            offsets=() if is_bare else self._offsets(image),
            home_count=self.rng.randint(1, max(1, len(extents)))
            if is_shared
            else self.rng.choice([1] * 30 + [0, 2, 9]),
        )

    def _extents(self, image: Image) -> tuple[TransactionExtent, ...]:
        keys = sorted(image.partitions)
        chosen = self.rng.sample(keys, min(len(keys), self.rng.randint(0, 3)))
        if chosen and self._sometimes(0.03):
            chosen.append(self.rng.choice([chosen[0], (chosen[0][0], 9), ("f" * 32, 0)]))
        return tuple(
            TransactionExtent(
                topic_id=topic_id,
                partition=partition,
                base_offset=self.rng.choice([-1, self.rng.randint(0, 50)]),
                end_offset=self.rng.randint(51, 100) - 100 * self._sometimes(0.02),
            )
            for topic_id, partition in chosen
        )

    def _offsets(self, image: Image) -> tuple[c.GroupCommit, ...]:
        groups = GroupSource(self.rng)
        count = self.rng.choice([0, 0, 1, 2])
        return tuple(groups.one_commit(image, self.rng.choice(GROUPS)) for _ in range(count))

    def _finish(self, image: Image) -> c.Command:
        """Return finished markers, mostly of endings that exist."""
        waiting = sorted(
            (key, transaction) for key, endings in image.ending.items() for transaction in endings
        )
        chosen = self.rng.sample(waiting, min(len(waiting), self.rng.randint(1, 3)))
        if self._sometimes(0.1):
            chosen.append((("f" * 32, 0), self._any()))
            chosen += [(key, self._any()) for key, _ in chosen[:1]]
        return c.FinishMarkers(
            markers=tuple(
                c.FinishedMarker(
                    topic_id=topic_id,
                    partition=partition,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                )
                for (topic_id, partition), (producer_id, epoch) in chosen
            )
        )

    def _config(self, image: Image) -> c.Command:
        """Return a change of a topic's settings, mostly to those that transactions need."""
        changes: list[tuple[str, str | None]] = [(name, None) for name in SETTINGS]
        if self._sometimes(0.2):
            changes = [self.rng.choice([(SETTINGS[0], "1000"), (SETTINGS[1], "true")])]
        topic_id = self.rng.choice(sorted(image.topics) or ["f" * 32])
        return c.AlterConfigs(topic_id=topic_id, changes=tuple(changes))

    def _any(self) -> TransactionKey:
        return self.rng.randint(1, 9), self.rng.randint(0, 9)
