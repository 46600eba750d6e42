"""Reports unexpected errors of the event loop's callbacks."""

import asyncio
from typing import Any

from milena.model.contained import ContainedErrors, EntryPoint
from milena.model.errors import MilenaError


def contain_callbacks(loop: asyncio.AbstractEventLoop, contained: ContainedErrors) -> None:
    """Report unexpected errors of callbacks (also of a ``Pending``) and of tasks that were not awaited.

    Only this handler reports them. The loop goes on after such an error in any case. Broken connections and expected
    errors are logged in the loop's default way.
    """

    def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception) and not isinstance(error, OSError | MilenaError):
            contained.report(EntryPoint.CALLBACK, error, "callback", str(context.get("message")))
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(on_error)
