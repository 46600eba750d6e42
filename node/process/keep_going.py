"""Keeps background work running. If an unexpected error ends it, the work starts again after a pause."""

from collections.abc import Awaitable, Callable

from milena.model.clock import Clock
from milena.model.contained import ContainedErrors, EntryPoint
from milena.model.errors import DiskFailedError, StartupError
from node.config.budgets import LASTING_RETRY_MS


async def keep_going(
    name: str, work: Callable[[], Awaitable[None]], *, clock: Clock, contained: ContainedErrors
) -> None:
    """Run ``work`` until it returns. If an unexpected error ends it, report the error, pause, and start it again.

    Raises:
        StartupError, DiskFailedError: the node must stop.
    """
    while True:
        try:
            await work()
        except (StartupError, DiskFailedError):
            raise
        except Exception as error:  # noqa: BLE001 - the one place that contains errors of background work
            contained.report(EntryPoint.TASK, error, "task", name)
            await clock.sleep(LASTING_RETRY_MS)
        else:
            return
