"""Command lines of transactions, for ``machine_scripts``. ``1@0`` is the transaction of producer 1 at epoch 0.

end 1@0 t-0=3:9 t-1=9 [keyed] [g/t-0=7 g/a@2/t-1=8]     a commit of offsets 3 to 9 in t-0, and up to 9 in t-1; group g,
                            member a at epoch 2, has read up to 8 of t-1
end 1@0 abort               | also-end ..      one more end for the next ``end``
finish 1@0 t-0,t-1          the logs of these partitions have the marker
outcome 1@0 t-0,t-1         the state of the transaction in these partitions, without a command
"""

from dataclasses import dataclass, field

from raft_meta.machine import commands as c
from raft_meta.machine.image import Ending, Image, PartitionKey, TransactionExtent, TransactionKey
from raft_meta.machine.transactions import outcome_of
from tests.support.machine.group_scripts import key_of

VERBS = ("end", "also-end", "finish")


def transaction_of(text: str) -> TransactionKey:
    producer_id, epoch = text.split("@")
    return int(producer_id), int(epoch)


@dataclass
class TransactionLines:
    """Makes commands from lines; ``words`` and ``named`` are those of ``machine_scripts.Line``."""

    waiting: list[c.TransactionEnd] = field(default_factory=list)

    def command(
        self, image: Image, verb: str, words: tuple[str, ...], named: dict[str, str]
    ) -> c.Command | None:
        if verb == "finish":
            return self._finish(image, words)
        self.waiting.append(self._end(image, words, named))
        if verb == "also-end":
            return None
        ends = tuple(self.waiting)
        self.waiting.clear()
        return c.EndTransactions(ends=ends)

    def _end(self, image: Image, words: tuple[str, ...], named: dict[str, str]) -> c.TransactionEnd:
        producer_id, epoch = transaction_of(words[0])
        extents = {name: value for name, value in named.items() if "/" not in name}
        keyed = [word for word in words if word.startswith("keyed")]
        return c.TransactionEnd(
            producer_id=producer_id,
            producer_epoch=epoch,
            is_commit="abort" not in words,
            is_keyed=bool(keyed),
            extents=tuple(self._extent(image, name, value) for name, value in extents.items()),
            offsets=tuple(
                self._commit(image, name, value) for name, value in named.items() if "/" in name
            ),
            home_count=int("".join(keyed).partition(":")[2] or 1),
        )

    def _extent(self, image: Image, name: str, value: str) -> TransactionExtent:
        topic_id, partition = key_of(image, name)
        base, _, end = value.rpartition(":")
        return TransactionExtent(
            topic_id=topic_id, partition=partition, base_offset=int(base or -1), end_offset=int(end)
        )

    def _commit(self, image: Image, name: str, value: str) -> c.GroupCommit:
        group_id, *member, read = name.split("/")
        member_id, _, epoch = "".join(member).partition("@")
        topic_id, partition = key_of(image, read)
        offset = c.OffsetCommit(
            topic_id=topic_id, partition=partition, offset=int(value), leader_epoch=-1, metadata=""
        )
        return c.GroupCommit(
            group_id=group_id,
            member_id=member_id or None,
            member_epoch=int(epoch or -1),
            offsets=(offset,),
        )

    def _finish(self, image: Image, words: tuple[str, ...]) -> c.Command:
        producer_id, epoch = transaction_of(words[0])
        return c.FinishMarkers(
            markers=tuple(
                c.FinishedMarker(
                    topic_id=topic_id,
                    partition=partition,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                )
                for topic_id, partition in _keys(image, words[1])
            )
        )


def _keys(image: Image, text: str) -> list[PartitionKey]:
    return [key_of(image, name) for name in text.split(",")]


# --- what is there ---


def describe_outcome(image: Image, words: tuple[str, ...]) -> list[str]:
    """Return a line for each partition, such as ``t-0 committed below 9``."""
    lines = []
    for name, key in zip(words[1].split(","), _keys(image, words[1]), strict=True):
        outcome = outcome_of(image, *key, *transaction_of(words[0]))
        if isinstance(outcome, Ending):
            lines.append(f"{name} committed below {outcome.end_offset}")
        else:
            lines.append(f"{name} {outcome.value}")
    return lines


def describe_endings(before: Image, now: Image) -> list[str]:
    """Return changed endings: ``ending t-0: 1@0 below 9``, with its stored extents if there are any, or ``gone``."""
    old, new = _flat(before), _flat(now)
    changed = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    return [
        f"ending {_name(now, key)}: {transaction[0]}@{transaction[1]} {_ending(now, new.get((key, transaction)))}"
        for key, transaction in changed
        if key[0] in now.topics
    ]


def _flat(image: Image) -> dict[tuple[PartitionKey, TransactionKey], Ending]:
    return {
        (key, transaction): ending
        for key, endings in image.ending.items()
        for transaction, ending in endings.items()
    }


def _ending(image: Image, ending: Ending | None) -> str:
    if ending is None:
        return "gone"
    wrote = [
        f"{_name(image, (e.topic_id, e.partition))}={e.base_offset}:{e.end_offset}"
        for e in ending.extents
    ]
    return f"below {ending.end_offset}{', wrote ' if wrote else ''}{' '.join(wrote)}"


def _name(image: Image, key: PartitionKey) -> str:
    topic = image.topics.get(key[0])
    return f"{topic.name if topic else '?'}-{key[1]}"
