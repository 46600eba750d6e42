"""On whose behalf something is done: the principal of the request that is being worked on.

Whoever identifies a caller says so here, and it is kept across awaits and tasks, so that what a request changes in the
replicated state can be told of with a name (``node.metadata.store``), however many hands it goes through. Empty: nobody
was asked, or a node does it by itself.
"""

from contextvars import ContextVar

principal: ContextVar[str] = ContextVar("principal", default="")
