"""Access control for blocking programs: ``client.admin.access`` of ``milena.sync``."""

from collections.abc import Callable, Coroutine
from typing import Protocol, TypeVar

from milena.blocking.forwarding import Forwarding, forwarded
from milena.cluster.access_admin import AccessAdmin as AsyncAccessAdmin
from milena.cluster.admin import AdminClient

T = TypeVar("T")


class RunsAdmin(Protocol):
    """Run one piece of administration on the client's own thread."""

    def __call__(self, work: Callable[[AdminClient], Coroutine[object, object, T]], /) -> T:
        """Return the result of ``work``, or raise its error."""


class AccessAdmin(Forwarding[AsyncAccessAdmin]):
    """The blocking ``milena.AccessAdmin``. Methods, parameters and errors are the same."""

    def __init__(self, call: RunsAdmin) -> None:
        self._call = call

    def _run(self, work: Callable[[AsyncAccessAdmin], Coroutine[object, object, T]]) -> T:
        return self._call(lambda admin: work(admin.access))

    state = forwarded(AsyncAccessAdmin.state)
    set_mode = forwarded(AsyncAccessAdmin.set_mode)
    users = forwarded(AsyncAccessAdmin.users)
    user = forwarded(AsyncAccessAdmin.user)
    put_user = forwarded(AsyncAccessAdmin.put_user)
    delete_user = forwarded(AsyncAccessAdmin.delete_user)
    tokens = forwarded(AsyncAccessAdmin.tokens)
    create_token = forwarded(AsyncAccessAdmin.create_token)
    delete_token = forwarded(AsyncAccessAdmin.delete_token)
    quotas = forwarded(AsyncAccessAdmin.quotas)
    alter_quota = forwarded(AsyncAccessAdmin.alter_quota)
    delete_quota = forwarded(AsyncAccessAdmin.delete_quota)
    acls = forwarded(AsyncAccessAdmin.acls)
    add_acls = forwarded(AsyncAccessAdmin.add_acls)
    remove_acls = forwarded(AsyncAccessAdmin.remove_acls)
