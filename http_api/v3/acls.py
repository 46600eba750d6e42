"""v3: access control entries, in the words of Confluent's REST API."""

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

import orjson
from aiohttp import web

from http_api.access.hosts import plain_host
from http_api.access.port import AclSelection
from http_api.answers import empty_answer, json_answer
from http_api.call import Call
from http_api.describing.params import text_param
from http_api.describing.schemas import Fields
from http_api.errors import InvalidFieldError
from http_api.shapes.access import NEW_ACL, NEW_ACLS
from http_api.shapes.blocks import text
from http_api.v3.resources import Links, Resource, cluster_id, item_answer
from milena.model.access import ANY_HOST, Operation, PatternType, Permission, ResourceType
from milena.model.errors import MalformedRequestError
from milena.model.turns import one_turn
from raft_meta.machine.image import Acl

ROWS_PER_TURN = 250
_WORDS = {
    "resource_type": ResourceType,
    "pattern_type": PatternType,
    "operation": Operation,
    "permission": Permission,
}
FILTERS = (
    text_param("resource_type", "only of this type", text(enum=list(ResourceType))),
    text_param("resource_name", "only of this name", text(minLength=1), "orders"),
    text_param("pattern_type", "only such patterns", text(enum=list(PatternType))),
    text_param("principal", "only of this principal", text(minLength=1), "User:alice"),
    text_param("host", "only of this host", text(minLength=1), "*"),
    text_param("operation", "only of this operation", text(enum=list(Operation))),
    text_param("permission", "only these", text(enum=list(Permission))),
)


async def list_acls(call: Call) -> web.Response:
    """The entries that the query leaves."""
    links = Links(call)
    wanted = _filter(call.query())
    items = await _rows(links, await call.ports.access.acls(wanted))
    return item_answer(links.listing("KafkaAclList", links.url("acls"), items))


async def create_acl(call: Call) -> web.Response:
    """Add an entry."""
    cluster_id(call)
    return await _add(call, [_acl(Fields(await call.json_body(), "the body", NEW_ACL.fields))])


async def create_acls(call: Call) -> web.Response:
    """Add several entries, all or none."""
    cluster_id(call)
    fields = Fields(await call.json_body(), "the body", NEW_ACLS.fields)
    fields.required_items("data")
    return await _add(call, [_acl(item) for item in fields.objects("data", NEW_ACL.fields)])


async def _add(call: Call, acls: Sequence[Acl]) -> web.Response:
    await call.ports.access.add_acls(acls)
    for acl in acls:
        call.rights.tell(f"added {_words(acl)}")
    return empty_answer(201)


async def delete_acls(call: Call) -> web.Response:
    """Remove the entries that the query names."""
    links = Links(call)
    query = call.query()
    if not query:
        raise MalformedRequestError(
            "to remove all entries at once is hardly meant: name a principal, a resource or something else of them"
        )
    removed = await call.ports.access.remove_acls(_filter(query))
    for acl in removed:
        call.rights.tell(f"removed {_words(acl)}")
    return json_answer({"data": await _rows(links, removed)})


def _filter(query: Mapping[str, str]) -> AclSelection:
    for name, wanted in query.items():
        if not wanted:
            raise MalformedRequestError(
                f"Invalid parameter '{name}' got '': say what it is to be, or leave it out"
            )
    for name, kind in _WORDS.items():
        if name in query and query[name] not in set(kind):
            raise MalformedRequestError(
                f"Invalid parameter '{name}' got '{query[name]}': use {', '.join(kind)}"
            )
    host = query.get("host")
    return AclSelection(
        principal=query.get("principal"),
        resource_type=query.get("resource_type"),
        pattern_type=query.get("pattern_type"),
        name=query.get("resource_name"),
        operation=query.get("operation"),
        permission=query.get("permission"),
        host=host if host is None else plain_host(host),
    )


def _acl(fields: Fields) -> Acl:
    for name, kind in _WORDS.items():
        word = fields.required_text(name)
        if word not in set(kind):
            raise InvalidFieldError(f"'{name}' is '{word}': use {', '.join(kind)}")
    host = fields.required_text("host")
    return Acl(
        principal=fields.required_text("principal"),
        resource_type=fields.required_text("resource_type"),
        pattern_type=fields.required_text("pattern_type"),
        name=fields.required_text("resource_name"),
        operation=fields.required_text("operation"),
        permission=fields.required_text("permission"),
        host=host if host == ANY_HOST else plain_host(host),
    )


def _words(acl: Acl) -> str:
    return (
        f"{acl.permission} {acl.principal} {acl.operation} {acl.resource_type} {acl.name} {acl.pattern_type} "
        f"from {acl.host}"
    )


async def _rows(links: Links, acls: Sequence[Acl]) -> list[orjson.Fragment]:
    """The entries as JSON. A cluster may have 100,000: other requests get their turn in between."""
    rows: list[orjson.Fragment] = []
    for start in range(0, len(acls), ROWS_PER_TURN):
        if start:
            await one_turn()
        part = acls[start : start + ROWS_PER_TURN]
        rows += [orjson.Fragment(orjson.dumps(_resource(links, acl))) for acl in part]
    return rows


def _resource(links: Links, acl: Acl) -> Resource:
    own = {
        "resource_type": acl.resource_type,
        "resource_name": acl.name,
        "pattern_type": acl.pattern_type,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission": acl.permission,
    }
    return {
        "kind": "KafkaAcl",
        "metadata": {
            # An entry is found by what it says.
            "self": f"{links.url('acls')}?{urlencode(own)}",
            "resource_name": f"crn:///kafka={links.cluster_id}/acl={acl.principal}",
        },
        "cluster_id": links.cluster_id,
        **own,
    }
