"""One decoder that takes bytes from outside, and what the targets share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from milena.model.errors import CorruptLogError

BYTES_MAX = 1 << 20
"""What the targets allow a payload to become."""
KEY = b"k" * 32
CORRUPT = (CorruptLogError,)


@dataclass(frozen=True, slots=True)
class Target:
    """One decoder.

    Attributes:
        name: of the target, and of its file in the corpus.
        decode: takes any bytes.
        errors: what it may raise.
        seeds: makes sound inputs.
        reseal: repairs the checksums of a mutated input, so that what they guard is looked at, too.
    """

    name: str
    decode: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    seeds: Callable[[], list[bytes]]
    reseal: Callable[[bytes], bytes] = field(default=lambda data: data)
