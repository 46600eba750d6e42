"""A disk that fails is not tried again: what it holds is not known any more, and the process ends."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from milena.model.errors import DiskFailedError


@contextmanager
def failing_disk_is_fatal(on_fatal: Callable[[BaseException], None]) -> Iterator[None]:
    """Around every change of a log that is made on the loop.

    Raises:
        DiskFailedError: after ``on_fatal`` was called, so that nothing goes on as if the change was made.
    """
    try:
        yield
    except DiskFailedError as error:
        on_fatal(error)
        raise
