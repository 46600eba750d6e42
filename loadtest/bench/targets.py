"""Targets of the figures: what a row of the table says, its floor and its ambition, and the verdicts (pure).

A row names two contenders of one stage, or one whose figure counts by itself. Where the peer does not sync, Milena's
topic does not either (``flush.messages`` at its largest): like is compared with like. The same with syncs, which is how
topics are unless somebody asks for less, stands beside it without a floor of its own; what a sync costs is the disk's
affair, and two rows judge how well it is shared and hidden.

A floor has to hold on any host. Where a host's nature bounds a figure (what a wake, a sync or a copy takes there) and
bounds the peer's otherwise, the ratio of the two moves from host to host. Such a row keeps its ambition and leaves
the floor to another, ``host_row``: that one is against the bare server, which pays the same price in the same round, so
that what is left is this code.
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
    """In the page cache of every required replica."""
    NONE = "-"
    """Nothing is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One row. Without ``reference`` the subject's figure itself is judged; without ``ambition`` nothing is.

    ``host_row``: the row that has the floor in this one's place; a row that is judged has either it or a ``floor``.
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
    is_less_better: bool = False


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
    """A row with what was measured. ``spread`` is None when nothing was."""

    target: Target
    verdict: TargetVerdict
    spread: Spread | None = None
    ours: Spread | None = None
    theirs: Spread | None = None
    note: str = ""


def judge(target: Target, rounds: Rounds, *, is_disk_real: bool) -> TargetOutcome:
    """Hold what was measured against a row.

    ``is_disk_real``: whether syncs reach a disk. Where they cost nothing, durable rows are shown and not judged, and
    so is what was measured on less than the row says.
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
