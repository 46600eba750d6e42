"""Changes of a replica that must not be left half done.

Two kinds of errors end the process (`docs/architecture.md`, "What ends a node"):

- A disk error. The disk is not tried again, because its content is unknown after that.
- An unexpected error in the middle of a change, which may leave a log or a role that contradicts itself.

Any other ``MilenaError`` is an expected refusal, after which the replica is unchanged.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from milena.model.errors import DiskFailedError, MilenaError


def is_fatal(error: BaseException) -> bool:
    """Return whether a change that raised this error leaves its replica in an unknown state."""
    return not isinstance(error, MilenaError) or isinstance(error, DiskFailedError)


@contextmanager
def changes_replica(on_fatal: Callable[[BaseException], None]) -> Iterator[None]:
    """Stop the process if the block raises a fatal error. Each change of a replica on the loop is in this block.

    Raises:
        Exception: the error of the block, after ``on_fatal`` was called if it is fatal. Callers must not continue as if
            the change was made.
    """
    try:
        yield
    except Exception as error:
        if is_fatal(error):
            on_fatal(error)
        raise
