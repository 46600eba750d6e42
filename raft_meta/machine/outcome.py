"""The value that the domain modules return to ``apply``: a new image, and a response for the proposer."""

from dataclasses import dataclass

from raft_meta.machine.image import Image

Response = None | int | str | tuple[int, ...] | tuple[str, ...]
"""Response of a command: nothing, a number, a text, or a tuple of either (a bool is a number)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The effect of one accepted command. A refused one raises a typed error instead."""

    image: Image
    response: Response = None
