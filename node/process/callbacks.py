"""Contain what callbacks of the event loop raise."""

import asyncio
from typing import Any

from milena.model.contained import ContainedErrors, EntryPoint
from milena.model.errors import MilenaError


def contain_callbacks(loop: asyncio.AbstractEventLoop, contained: ContainedErrors) -> None:
    """Report unexpected errors of callbacks, of a ``Pending`` too, and of tasks that nobody awaited.

    This is the one place for them. The loop goes on after such an error in any case; broken connections and expected
    errors are logged as the loop would by itself.
    """

    def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception) and not isinstance(error, OSError | MilenaError):
            contained.report(EntryPoint.CALLBACK, error, "callback", str(context.get("message")))
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(on_error)
