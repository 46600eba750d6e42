"""Access control for blocking programs: ``client.admin.access`` of ``milena.sync``."""

from collections.abc import Callable, Coroutine
from typing import TypeVar

from milena.blocking.forwarding import Forwarding, forwarded
from milena.cluster.access_admin import AccessAdmin as AsyncAccessAdmin
from milena.cluster.admin import AdminClient

T = TypeVar("T")


class AccessAdmin(Forwarding[AsyncAccessAdmin]):
    """The blocking ``milena.AccessAdmin``. Methods, parameters and errors are the same."""

    def __init__(self, admin: Forwarding[AdminClient]) -> None:
        self._admin = admin

    def _run(self, work: Callable[[AsyncAccessAdmin], Coroutine[object, object, T]]) -> T:
        return self._admin._run(lambda admin: work(admin.access))

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
