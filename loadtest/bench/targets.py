"""The rows of the table: each has a figure, a floor and an ambition, and gets a verdict (pure).

A row compares two contenders of one stage, or judges one contender's figure. If the peer does not sync, Milena's topic
does not either (``flush.messages`` at its largest), so that both do the same work. A second row has the figure with
syncs, which is a topic's default. That row has no floor, because the cost of a sync is the disk's. Two further rows
judge how well syncs are shared among requests and overlapped with other work.

A floor must hold on any host. If a host limits Milena's figure and the peer's in different ways (by the cost of a
wake-up, a sync or a copy), their ratio differs from host to host. Such a row keeps its ambition, and its floor is in
another row, the ``host_row``. That row compares with the bare server, which has the same costs in the same round. So
its ratio depends only on this code.
"""

from dataclasses import dataclass
from enum import StrEnum, unique

from loadtest.bench.measuring.samples import Quantity, Rounds, Spread


@unique
class Durability(StrEnum):
    """The condition under which a write counts as done."""

    DURABLE = "durable"
    """Synced to disk on every required replica before it is acknowledged."""
    UNSYNCED = "unsynced"
    """Written to the page cache of every required replica before it is acknowledged."""
    NONE = "-"
    """The row writes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One row. Without ``reference``, the subject's own figure is judged. Without ``ambition``, the row is only shown.

    ``host_row`` is the name of the row that has the floor of this one. A judged row has either ``host_row`` or
    ``floor``.
    """

    name: str
    what: str
    stage: str
    subject: str
    reference: str | None = None
    quantity: Quantity = Quantity.RATE
    durability: Durability
    floor: float | None = None
    host_row: str | None = None
    ambition: float | None = None

    @property
    def is_less_better(self) -> bool:
        """Whether a smaller figure is better: of all quantities but a rate."""
        return self.quantity is not Quantity.RATE


@unique
class TargetVerdict(StrEnum):
    """The verdict on a row."""

    AMBITION = "ambition met"
    FLOOR = "floor met"
    BELOW = "BELOW THE FLOOR"
    SHORT = "ambition not met"
    """The verdict of a row whose floor is another row's."""
    SHOWN = "shown"
    """The row has no target, or a note says why it counts for less here."""
    ABSENT = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOutcome:
    """A row with its verdict and figures; ``spread`` is None if nothing was measured."""

    target: Target
    verdict: TargetVerdict
    spread: Spread | None = None
    ours: Spread | None = None
    theirs: Spread | None = None
    note: str = ""


def judge(target: Target, rounds: Rounds, *, is_disk_real: bool) -> TargetOutcome:
    """Return the verdict on a row.

    ``is_disk_real`` is whether syncs reach a disk. If they do not, durable rows are shown and not judged. A row is also
    only shown if a contender did less work than the row says.
    """
    ours = rounds.figures(target.subject, target.quantity)
    if target.reference is None:
        values, theirs = ours, []
    else:
        values = rounds.ratios(target.subject, target.reference, target.quantity)
        theirs = rounds.figures(target.reference, target.quantity)
    if not values:
        return TargetOutcome(
            target=target, verdict=TargetVerdict.ABSENT, note=_why_absent(target, rounds)
        )
    spread = Spread.of(values)
    verdict, note = _verdict(target, spread.median), rounds.reduced.get(target.subject, "")
    if target.durability is Durability.DURABLE and not is_disk_real and target.ambition is not None:
        note = note or "syncs cost nothing in this directory's file system"
    if note:
        verdict = TargetVerdict.SHOWN
    return TargetOutcome(
        target=target,
        verdict=verdict,
        spread=spread,
        ours=Spread.of(ours),
        theirs=Spread.of(theirs) if theirs else None,
        note=note,
    )


def _why_absent(target: Target, rounds: Rounds) -> str:
    names = (target.subject, target.reference)
    return "; ".join(rounds.failures[name] for name in names if name in rounds.failures)


def _verdict(target: Target, value: float) -> TargetVerdict:
    if target.ambition is None:
        return TargetVerdict.SHOWN
    sign = -1 if target.is_less_better else 1
    if sign * value >= sign * target.ambition:
        return TargetVerdict.AMBITION
    if target.floor is None:
        return TargetVerdict.SHORT
    return TargetVerdict.FLOOR if sign * value >= sign * target.floor else TargetVerdict.BELOW
