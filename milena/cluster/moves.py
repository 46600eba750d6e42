"""Moves of replicas between nodes, as nodes tell of them: what was asked for, and what is under way."""

from collections.abc import Iterable
from dataclasses import dataclass

from milena.fields import AnswerFields, Json


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedMove:
    """One partition's part of a request. ``error`` None: it was taken."""

    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    is_cancelled: bool
    error: str | None

    @property
    def added(self) -> tuple[int, ...]:
        """Nodes that copy the partition for it."""
        return tuple(node for node in self.after if node not in self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoiningReplica:
    """A replica that is being added. None: its leader did not say."""

    node_id: int
    is_in_sync: bool
    offsets_left: int | None
    bytes_left: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A partition on the move. ``state``: waiting, catching_up or finishing."""

    topic: str
    partition: int
    state: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    isr: tuple[int, ...]
    added: tuple[JoiningReplica, ...]

    @property
    def bytes_left(self) -> int | None:
        """Bytes that its new replicas have yet to copy; None while it is not known."""
        sizes = [replica.bytes_left for replica in self.added]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) and self.state != "waiting" else None


def planned_moves(answer: Json) -> list[RequestedMove]:
    """Moves in the answer to a request for them, or for their cancellation."""
    return [
        RequestedMove(
            topic=row.text("topic"),
            partition=row.integer("partition"),
            before=row.integers("replicas_before"),
            after=row.integers("replicas"),
            is_cancelled=row.boolean("is_cancelled"),
            error=row.optional_text("error"),
        )
        for row in AnswerFields(answer, "reassignments").objects("partitions")
    ]


def running_moves(answer: Json) -> list[Move]:
    """Moves under way, of a node's answer."""
    return [
        Move(
            topic=row.text("topic"),
            partition=row.integer("partition"),
            state=row.text("state"),
            before=row.integers("replicas_before"),
            after=row.integers("replicas"),
            isr=row.integers("isr"),
            added=tuple(_added(row.objects("added"))),
        )
        for row in AnswerFields(answer, "reassignments").objects("reassignments")
    ]


def _added(rows: Iterable[AnswerFields]) -> Iterable[JoiningReplica]:
    for row in rows:
        yield JoiningReplica(
            node_id=row.integer("broker_id"),
            is_in_sync=row.boolean("is_in_sync"),
            offsets_left=row.optional_integer("offsets_left"),
            bytes_left=row.optional_integer("bytes_left"),
        )
