"""Changes of a replica that must not be left half done.

A disk that fails is not tried again, since nothing is known of what it holds. An unexpected error in the middle of a
change leaves a log or a role that contradicts itself. Both end the process: this is the line for replicas that
`docs/architecture.md` draws under "What ends a node". A ``MilenaError`` is an expected refusal, after which the replica
is as it was.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from milena.model.errors import DiskFailedError, MilenaError


def is_fatal(error: BaseException) -> bool:
    """Return whether a change of a replica that raised this leaves it in an unknown state."""
    return not isinstance(error, MilenaError) or isinstance(error, DiskFailedError)


@contextmanager
def changes_replica(on_fatal: Callable[[BaseException], None]) -> Iterator[None]:
    """Stop the process if the block raises a fatal error. Surrounds every change of a replica on the loop.

    Raises:
        Exception: what the block raised, after ``on_fatal`` was called, so that nothing goes on as if the change was
            made.
    """
    try:
        yield
    except Exception as error:
        if is_fatal(error):
            on_fatal(error)
        raise
