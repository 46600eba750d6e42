"""The principal of the request that is being handled, as a context variable.

``http_api.access.rights`` sets it after authentication. Tasks that the handler starts inherit it. So the audit log of
changes to the replicated state can name the principal (``node.metadata.store``). It is empty if the cluster requires no
credentials, or if the node itself makes a change.
"""

from contextvars import ContextVar

principal: ContextVar[str] = ContextVar("principal", default="")
