"""Deduplication of commands: a retry gets the first response and is not applied again.

The metadata log may hold a command twice: a proposer that gets no response proposes the command again. The log may also
hold a command of an ended process behind commands of its successor. Each broker is one proposer. It numbers the
commands of each incarnation (each start of its process). The image keeps the responses to the last ``WINDOW`` numbers.
For lower numbers, it is unknown whether their command was applied.
"""

from immutables import Map

from milena.model.errors import FateUnknownError, InvalidRequestError, StaleBrokerEpochError
from raft_meta.machine.commands import Envelope
from raft_meta.machine.image import Image, Proposer

WINDOW = 256
"""Number of responses kept for each proposer, and so its largest number of commands in flight."""


def earlier_response(image: Image, envelope: Envelope) -> bytes | None:
    """Return the response that the command got when it was applied; None if it has not been applied.

    Raises:
        InvalidRequestError: the command's number is below 1.
        StaleBrokerEpochError: a later incarnation of the proposer has proposed a command.
        FateUnknownError: the number is below the window.
    """
    if envelope.sequence < 1:
        raise InvalidRequestError("Sequences of commands start at 1.")
    proposer = image.proposers.get(envelope.proposer)
    if proposer is None or envelope.incarnation > proposer.incarnation:
        return None
    if envelope.incarnation < proposer.incarnation:
        raise StaleBrokerEpochError(
            f"Incarnation {envelope.incarnation} of node {envelope.proposer} is over:"
            f" {proposer.incarnation} is the latest."
        )
    if envelope.sequence <= proposer.floor:
        raise FateUnknownError(
            f"Command {envelope.sequence} of node {envelope.proposer} is too old to tell whether it was"
            " applied."
        )
    return proposer.window.get(envelope.sequence)


def with_response(image: Image, envelope: Envelope, response: bytes) -> Map[int, Proposer]:
    """Return the image's proposers with this response added, and without responses below the window."""
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
    """Return the numbers that fall out of the window. Usually it is one, because commands usually arrive in order."""
    if floor - before.floor <= WINDOW:
        return list(range(before.floor + 1, floor + 1))
    return [sequence for sequence in before.window if sequence <= floor]
