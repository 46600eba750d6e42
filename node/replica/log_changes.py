"""Changes of a replica that must be made as a whole or not at all.

Two kinds of errors end the process (`docs/architecture.md`, "What ends a node"):

- A disk error. After it, the content of the disk is unknown, so the operation must not be repeated.
- An unexpected error in the middle of a change. The log or the role may be half changed.

Any other ``MilenaError`` is an expected refusal. The replica is unchanged after it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from milena.model.errors import DiskFailedError, MilenaError


def is_fatal(error: BaseException) -> bool:
    """Return whether a change that raised this error may have left its replica half changed."""
    return not isinstance(error, MilenaError) or isinstance(error, DiskFailedError)


@contextmanager
def changes_replica(on_fatal: Callable[[BaseException], None]) -> Iterator[None]:
    """Stop the process if the block raises a fatal error. Each change of a replica on the data loop is in such a block.

    Raises:
        Exception: the error of the block. If it is fatal, ``on_fatal`` was called before. The caller must not continue
            as if the change was made.
    """
    try:
        yield
    except Exception as error:
        if is_fatal(error):
            on_fatal(error)
        raise
