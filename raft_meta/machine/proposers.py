"""Which commands were applied already: a retry is answered as the first time, and not applied again.

The metadata log may hold a command twice (a proposer that got no answer proposes it again) and may hold a dead
process's command after its successor's. Each broker is one proposer, numbering its commands within an incarnation of
its process. The last ``WINDOW`` numbers are remembered with their responses; below them nobody can tell any more.
"""

from immutables import Map

from milena.model.errors import FateUnknownError, InvalidRequestError, StaleBrokerEpochError
from raft_meta.machine.commands import Envelope
from raft_meta.machine.image import Image, Proposer

WINDOW = 256
"""Sequences remembered per proposer, and thus the most that one may have under way at a time."""


def earlier_response(image: Image, envelope: Envelope) -> bytes | None:
    """The response that the command got when it was applied; None: it was not applied yet.

    Raises:
        InvalidRequestError: sequences start at 1.
        StaleBrokerEpochError: a later incarnation of the proposer has spoken.
        FateUnknownError: the sequence is below the window.
    """
    if envelope.sequence < 1:
        raise InvalidRequestError("Sequences of commands start at 1.")
    proposer = image.proposers.get(envelope.proposer)
    if proposer is None or envelope.incarnation > proposer.incarnation:
        return None
    if envelope.incarnation < proposer.incarnation:
        raise StaleBrokerEpochError(
            f"Incarnation {envelope.incarnation} of broker {envelope.proposer} is over:"
            f" {proposer.incarnation} is the latest."
        )
    if envelope.sequence <= proposer.floor:
        raise FateUnknownError(
            f"Command {envelope.sequence} of broker {envelope.proposer} is too old to tell whether it was"
            " applied."
        )
    return proposer.window.get(envelope.sequence)


def with_response(image: Image, envelope: Envelope, response: bytes) -> Map[int, Proposer]:
    """The image's proposers with this response remembered, and what falls out of the window forgotten."""
    before = image.proposers.get(envelope.proposer)
    if before is None or before.incarnation != envelope.incarnation:
        before = Proposer(incarnation=envelope.incarnation, floor=0, window=Map())
    floor = max(before.floor, envelope.sequence - WINDOW)
    with before.window.mutate() as window:
        window[envelope.sequence] = response
        for sequence in _fallen(before, floor):
            window.pop(sequence, None)
        after = Proposer(incarnation=before.incarnation, floor=floor, window=window.finish())
    return image.proposers.set(envelope.proposer, after)


def _fallen(before: Proposer, floor: int) -> list[int]:
    """The sequences to forget; mostly one, since sequences mostly come one after the other."""
    if floor - before.floor <= WINDOW:
        return list(range(before.floor + 1, floor + 1))
    return [sequence for sequence in before.window if sequence <= floor]
