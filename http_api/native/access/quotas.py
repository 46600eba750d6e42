"""Native: quotas of users and client ids."""

from aiohttp import web

from http_api.describing.pages import LIMIT_OR_MOST, RowPage
from http_api.describing.schemas import Fields
from http_api.protocol.answers import empty_answer, json_answer
from http_api.serving.call import Call
from http_api.shapes import quotas as shapes
from milena.model.quotas import QuotaKey
from raft_meta.machine.image import Quota


async def list_quotas(call: Call) -> web.Response:
    """Return the quotas, by user and client id."""
    quotas = call.ports.metadata.image.quotas
    page = RowPage.of(call.query(), LIMIT_OR_MOST)
    rows = page.rows(sorted(quotas), lambda entity: _quota(quotas[entity]), None)
    return json_answer({"total": len(quotas), "quotas": rows})


async def put_quota(call: Call) -> web.Response:
    """Set or remove bounds of a user and client id."""
    fields = Fields(await call.json_body(), "the body", shapes.QUOTA_CHANGE.fields)
    user, client_id = fields.text("user") or "", fields.text("client_id") or ""
    limits = Fields(fields.raw("limits"), "'limits'", shapes.LIMITS.fields)
    changes = {QuotaKey(name): limits.integer(name, least=1) for name in sorted(limits.names())}
    await call.ports.access.alter_quota(user, client_id, changes)
    present = call.ports.metadata.image.quotas.get((user, client_id))
    left = present or Quota(user=user, client_id=client_id, limits=())
    return json_answer(_quota(left))


async def delete_quota(call: Call) -> web.Response:
    """Delete a quota, if there is one."""
    query = call.query()
    user, client_id = query.get("user", ""), query.get("client_id", "")
    await call.ports.access.alter_quota(user, client_id, dict.fromkeys(QuotaKey))
    return empty_answer()


def _quota(quota: Quota) -> dict[str, object]:
    return {
        "user": quota.user or None,
        "client_id": quota.client_id or None,
        "limits": dict(quota.limits),
    }
