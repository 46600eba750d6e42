"""Keeps the timeout that a client gave, while a request waits for the quorum or for other nodes.

These waits also have timeouts of their own (``node.config.budgets``), which may be longer than the client's.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from milena.model.errors import FateUnknownError, NoQuorumError

_NO_ANSWER = "no majority or no leader answered within the timeout"


@asynccontextmanager
async def in_time(
    timeout_ms: float, error: NoQuorumError | FateUnknownError
) -> AsyncIterator[None]:
    """Run a block. If it takes longer than ``timeout_ms``, cancel what it awaits and raise ``error``."""
    limit = asyncio.timeout(max(0.0, timeout_ms) / 1000)
    try:
        async with limit:
            yield
    except TimeoutError:
        # A TimeoutError of the block itself, for example of a connection, does not say what was done. Pass it on.
        if not limit.expired():
            raise
        raise error from None


def nothing(done: str) -> NoQuorumError:
    """Return the error for a block that changes nothing. ``done``: the action that would follow, such as "written"."""
    return NoQuorumError(f"{_NO_ANSWER}; nothing was {done}")


def unknown(fate: str) -> FateUnknownError:
    """Return the error for a block whose action may still take effect elsewhere. ``fate``: the possible effect."""
    return FateUnknownError(f"{_NO_ANSWER}; {fate}")
