"""Deduplication: the window of what each proposer proposed lately."""

from dataclasses import replace

import pytest

from milena.model.errors import FateUnknownError, InvalidRequestError, StaleBrokerEpochError
from milena.model.types import WallMs
from raft_meta.machine import commands as c
from raft_meta.machine import proposers
from raft_meta.machine.image import Image

FIRST = c.Envelope(
    proposer=1,
    incarnation=5,
    sequence=1,
    now_ms=WallMs(0),
    command=c.AllocateProducer(name=None),
)


def remembered(*sequences: int) -> Image:
    image = Image()
    for sequence in sequences:
        image = answered(image, replace(FIRST, sequence=sequence), str(sequence).encode())
    return image


def answered(image: Image, envelope: c.Envelope, response: bytes) -> Image:
    return replace(image, proposers=proposers.with_response(image, envelope, response))


def test_what_was_applied_has_its_response() -> None:
    image = remembered(1, 3)
    assert proposers.earlier_response(image, replace(FIRST, sequence=3)) == b"3"
    assert proposers.earlier_response(image, replace(FIRST, sequence=2)) is None
    assert proposers.earlier_response(image, replace(FIRST, proposer=2)) is None


def test_the_window_is_bounded_and_tells_where_it_begins() -> None:
    image = remembered(*range(1, 1000))
    proposer = image.proposers[1]
    assert len(proposer.window) == proposers.WINDOW
    assert proposer.floor == 999 - proposers.WINDOW
    with pytest.raises(FateUnknownError):
        proposers.earlier_response(image, replace(FIRST, sequence=proposer.floor))
    assert proposers.earlier_response(image, replace(FIRST, sequence=proposer.floor + 1))


def test_a_leap_forgets_everything_below_it_without_counting_there() -> None:
    image = remembered(1, 2, 1 << 60)
    assert dict(image.proposers[1].window) == {1 << 60: str(1 << 60).encode()}


def test_a_late_low_sequence_does_not_lower_the_floor() -> None:
    image = remembered(1000, 900)
    assert image.proposers[1].floor == 1000 - proposers.WINDOW


def test_a_new_incarnation_starts_anew_and_ends_the_earlier_one() -> None:
    later = replace(FIRST, incarnation=6)
    image = answered(remembered(1, 2), later, b"later")
    assert dict(image.proposers[1].window) == {1: b"later"}
    with pytest.raises(StaleBrokerEpochError, match="Incarnation 5 of node 1 is over: 6"):
        proposers.earlier_response(image, FIRST)


def test_sequences_start_at_one() -> None:
    with pytest.raises(InvalidRequestError):
        proposers.earlier_response(Image(), replace(FIRST, sequence=0))
