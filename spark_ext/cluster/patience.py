"""Retry calls that are safe to repeat, until elections, restarts and a missing quorum are over."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from milena.errors import ClientError, is_worth_another_try
from milena.model.clock import Clock, SystemClock
from milena.reading.patience import Patience

PATIENCE_MS = 120_000
"""How long a call without a useful response is retried, in ms.

A task's client also waits at least this long to connect (``connect_timeout_ms``). The driver has already reached the
cluster, so a task that cannot connect meets an outage and not a wrong URL.
"""

T = TypeVar("T")


async def patiently(
    ask: Callable[[], Awaitable[T]],
    clock: Clock | None = None,
    *,
    patience_ms: float = PATIENCE_MS,
    can_pass: Callable[[ClientError], bool] = is_worth_another_try,
    before_retry: Callable[[], None] = lambda: None,
) -> T:
    """Return the response to a call that is safe to repeat; retry it while its error can pass.

    Raises:
        ClientError: a permanent refusal, or ``patience_ms`` have passed.
    """
    clock = SystemClock() if clock is None else clock
    patience = Patience(patience_ms)
    while True:
        try:
            return await ask()
        except ClientError as error:
            wait_ms = patience.on_failure(clock.now_ms())
            if wait_ms is None or not can_pass(error):
                raise
        before_retry()
        await clock.sleep(wait_ms)
