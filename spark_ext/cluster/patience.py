"""Calls that may be repeated, with patience: elections, restarts and quorums that are not there for a while pass."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from milena.errors import ClientError
from milena.model.clock import Clock, SystemClock
from milena.producing.retry import is_worth_another_try
from milena.reading.patience import Patience

PATIENCE_MS = 120_000
"""How long a call is repeated that gets no answer of use."""

T = TypeVar("T")


async def patiently(ask: Callable[[], Awaitable[T]], clock: Clock | None = None) -> T:
    """The answer to what may be asked twice.

    Raises:
        ClientError: a refusal that stays one, or the patience is at its end.
    """
    clock = SystemClock() if clock is None else clock
    patience = Patience(PATIENCE_MS)
    while True:
        try:
            return await ask()
        except ClientError as error:
            wait_ms = patience.on_failure(clock.now_ms())
            if wait_ms is None or not is_worth_another_try(error):
                raise
        await clock.sleep(wait_ms)
