"""The client's timeout of a request, kept where the request waits for the quorum or for other nodes.

Such waits have budgets of their own (``node.config.budgets``), which may be longer than the client's timeout.
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
    """Run a block; if it takes longer, cancel what it awaits and raise ``error``."""
    limit = asyncio.timeout(max(0.0, timeout_ms) / 1000)
    try:
        async with limit:
            yield
    except TimeoutError:
        # The block may raise one of its own, for example for a connection. It does not say what was done.
        if not limit.expired():
            raise
        raise error from None


def nothing(done: str) -> NoQuorumError:
    """Return the error of a block that changes nothing. ``done``: the action that would follow, as "written"."""
    return NoQuorumError(f"{_NO_ANSWER}; nothing was {done}")


def unknown(fate: str) -> FateUnknownError:
    """Return the error of a block that another component may still carry out. ``fate``: its possible effect."""
    return FateUnknownError(f"{_NO_ANSWER}; {fate}")
