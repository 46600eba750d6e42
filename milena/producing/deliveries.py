"""Records that were sent together: one handle for all of them, with one outcome for each.

A handle knows only in which batches its records are, and their numbers there. A receipt is created when the program
reads it. So a record whose receipt is not read needs no object.

Threads: see ``milena.producing.delivery``.
"""

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, overload

from milena.errors import ClientError
from milena.producing.delivery import RecordBatch, until_settled
from milena.records import Receipt

DeliveriesCallback = Callable[["Deliveries"], None]
"""A function that is called once, on the loop's thread, when every record has its outcome. It must not block."""


class DeliveryPart(NamedTuple):
    """Records of one ``send_many`` call that are in one batch. Record ``places[n]`` has number ``first + n`` there.

    ``places`` are indexes of the values that were sent together.
    """

    batch: RecordBatch
    first: int
    places: Sequence[int]


class DeliveryRun(NamedTuple):
    """Records of one partition with the same outcome: an error, or written from ``base_offset`` on.

    ``base_offset`` is None if the offsets are not known (``acks=0``). ``places`` are indexes of the sent values,
    ascending.
    """

    partition: int
    places: Sequence[int]
    base_offset: int | None
    error: ClientError | None


class Deliveries:
    """Records in flight. Await them for their receipts, in the order of the values, or ignore them.

    Awaiting raises the error of the first record that has one; ``Producer`` lists the errors. ``outcomes`` and ``runs``
    give the outcome of each record. Cancelling a task that waits does not cancel the records.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[DeliveryPart]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return sum(len(part.places) for part in self.parts)

    @property
    def is_done(self) -> bool:
        """True when every record has its outcome."""
        return all(part.batch.is_settled for part in self.parts)

    @property
    def runs(self) -> list[DeliveryRun] | None:
        """The outcomes, partition by partition; None while a record is in flight."""
        if not self.is_done:
            return None
        return [
            DeliveryRun(batch.partition, places[start - first : stop - first], offset, error)
            for batch, first, places in self.parts
            for start, stop, offset, error in batch.runs(first, first + len(places))
        ]

    @property
    def outcomes(self) -> list[Receipt | ClientError] | None:
        """The receipt or the error of each record, in the order of the values; None while a record is in flight."""
        if not self.is_done:
            return None
        found: dict[int, Receipt | ClientError] = {}
        for batch, first, places in self.parts:
            found.update((place, batch.outcome(first + n)) for n, place in enumerate(places))
        return [found[place] for place in range(len(found))]

    def __await__(self) -> Generator[None, None, "DeliveryReceipts"]:
        for part in self.parts:
            if not part.batch.is_settled:
                yield from until_settled(part.batch)
        return self.receipts()

    def receipts(self) -> "DeliveryReceipts":
        """Return the receipts; every record must have its outcome.

        Raises:
            ClientError: the error of the first record that failed.
        """
        failed = [run for run in self.runs or () if run.error is not None]
        if failed:
            error = min(failed, key=lambda run: run.places[0]).error
            assert error is not None, failed
            raise error
        return DeliveryReceipts(self)

    def when_done(self, callback: DeliveriesCallback) -> None:
        """Call ``callback`` when every record has its outcome.

        The caller holds the producer's lock, so that no batch is settled meanwhile.
        """
        left = len(self.parts)

        def settled() -> None:
            nonlocal left
            left -= 1
            if not left:
                callback(self)

        for part in self.parts:
            part.batch.waiters.append(settled)


class DeliveryReceipts(Sequence[Receipt]):
    """Receipts in the order of the values. They are created at the first access."""

    __slots__ = ("_deliveries", "_made")

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries
        self._made: list[Receipt] | None = None

    def __len__(self) -> int:
        return len(self._deliveries)

    @overload
    def __getitem__(self, index: int) -> Receipt: ...

    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...

    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if self._made is None:
            outcomes = self._deliveries.outcomes or []
            self._made = [outcome for outcome in outcomes if isinstance(outcome, Receipt)]
        return self._made[index]
