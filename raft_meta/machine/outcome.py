"""The result of applying a command: a new image, and a response for the proposer."""

from dataclasses import dataclass

from raft_meta.machine.image import Image

Response = None | int | str | tuple[int, ...] | tuple[str, ...]
"""Response of a command: None, a number, a text, or a tuple of numbers or of texts. A bool counts as a number."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The effect of a command that was accepted. For a refused command, a typed error is raised instead."""

    image: Image
    response: Response = None
