"""The principal of the request that is being handled.

The code that identifies a caller sets it, and it lasts across awaits and tasks. So the log of changes to the replicated
state can name the principal (``node.metadata.store``). Empty: the cluster asked for no credentials, or the node acts by
itself.
"""

from contextvars import ContextVar

principal: ContextVar[str] = ContextVar("principal", default="")
