"""v3: access control entries, in the form of Confluent's REST API."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlencode

import orjson
from aiohttp import web

from http_api.access.hosts import plain_host
from http_api.access.port import AclSelection
from http_api.describing.params import Param
from http_api.describing.schemas import Fields
from http_api.protocol.answers import empty_answer, json_answer
from http_api.protocol.errors import InvalidFieldError
from http_api.serving.call import Call
from http_api.shapes.access import NEW_ACL, NEW_ACLS
from http_api.shapes.blocks import text
from http_api.v3.resources import Links, Resource, cluster_id
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
_ANY, _MATCH = "ANY", "MATCH"
FILTERS = (
    Param("resource_type", "only of this type", text(enum=[*ResourceType, _ANY, ""])),
    Param("resource_name", "only of this name", text(), "orders"),
    Param(
        "pattern_type",
        "only such patterns; MATCH: all entries that are looked at for a resource called `resource_name`",
        text(enum=[*PatternType, _ANY, _MATCH, ""]),
    ),
    Param("principal", "only of this principal", text(), "User:alice"),
    Param("host", "only of this host", text(), "*"),
    Param("operation", "only of this operation", text(enum=[*Operation, _ANY, ""])),
    Param("permission", "only these", text(enum=[*Permission, _ANY, ""])),
)
"""The words of each field in a query. An empty value and ANY select all entries; upper or lower case is ignored."""


async def list_acls(call: Call) -> web.Response:
    """Return the entries that the query selects."""
    links = Links(call)
    wanted = _filter(call.query())
    items = await _rows(links, await call.ports.access.acls(wanted))
    return links.listing("KafkaAclList", items, "acls")


async def create_acl(call: Call) -> web.Response:
    """Add an entry."""
    links = Links(call)
    acl = _acl(Fields(await call.json_body(), "the body", NEW_ACL.fields))
    return await _add(call, [acl], location=_url(links, acl))


async def create_acls(call: Call) -> web.Response:
    """Add several entries, all or none."""
    cluster_id(call)
    fields = Fields(await call.json_body(), "the body", NEW_ACLS.fields)
    fields.required_items("data")
    return await _add(call, [_acl(item) for item in fields.objects("data", NEW_ACL.fields)])


async def _add(call: Call, acls: Sequence[Acl], *, location: str = "") -> web.Response:
    await call.ports.access.add_acls(acls)
    for acl in acls:
        call.rights.tell(f"added {_words(acl)}")
    return empty_answer(201, [("Location", location)] if location else [])


async def delete_acls(call: Call) -> web.Response:
    """Remove the entries that the query names."""
    links = Links(call)
    query = call.query()
    for name, given in query.items():
        if not given:
            # Refuse an empty value here. If a script forgot to set a variable, it would remove all entries.
            raise MalformedRequestError(
                f"Invalid parameter '{name}' got '': say what it is to be, or leave it out"
            )
    wanted = _filter(query)
    if replace(wanted, is_match=False) == AclSelection():
        raise MalformedRequestError(
            "to remove all entries at once is hardly meant: name a principal, a resource or something else of them"
        )
    (removed,) = await call.ports.access.remove_acls([wanted])
    for acl in removed:
        call.rights.tell(f"removed {_words(acl)}")
    return json_answer({"data": await _rows(links, removed)})


def _filter(query: Mapping[str, str]) -> AclSelection:
    """Return the filter in a query. An empty value and ANY select all entries, as in Confluent's REST proxy."""
    words = {name: _wanted_word(name, query.get(name, "")) for name in _WORDS}
    is_match = words["pattern_type"] == _MATCH
    host = query.get("host") or None
    return AclSelection(
        principal=query.get("principal") or None,
        resource_type=words["resource_type"],
        pattern_type=None if is_match else words["pattern_type"],
        name=query.get("resource_name") or None,
        operation=words["operation"],
        permission=words["permission"],
        host=host if host is None else plain_host(host),
        is_match=is_match,
    )


def _wanted_word(name: str, given: str) -> str | None:
    word = given.upper()
    if word in ("", _ANY):
        return None
    if word not in _filter_words(name):
        raise MalformedRequestError(
            f"Invalid parameter '{name}' got '{given}': use {', '.join(_filter_words(name))}"
        )
    return word


def _filter_words(name: str) -> list[str]:
    return [*_WORDS[name], _ANY, *([_MATCH] if name == "pattern_type" else [])]


def _acl(fields: Fields) -> Acl:
    words: dict[str, str] = {}
    for name, kind in _WORDS.items():
        words[name] = fields.required_text(name).upper()
        if words[name] in (_ANY, _MATCH):
            raise MalformedRequestError(
                f"'{name}' is {words[name]}, which is for searches: use {', '.join(kind)}"
            )
        if words[name] not in set(kind):
            raise InvalidFieldError(f"'{name}' is '{words[name]}': use {', '.join(kind)}")
    host = fields.required_text("host")
    return Acl(
        principal=fields.required_text("principal"),
        resource_type=words["resource_type"],
        pattern_type=words["pattern_type"],
        name=fields.required_text("resource_name"),
        operation=words["operation"],
        permission=words["permission"],
        host=host if host == ANY_HOST else plain_host(host),
    )


def _words(acl: Acl) -> str:
    return (
        f"{acl.permission} {acl.principal} {acl.operation} {acl.resource_type} {acl.name} {acl.pattern_type} "
        f"from {acl.host}"
    )


async def _rows(links: Links, acls: Sequence[Acl]) -> list[orjson.Fragment]:
    """Return the entries as JSON, with pauses for other requests: a cluster may have 100,000 entries."""
    rows: list[orjson.Fragment] = []
    for start in range(0, len(acls), ROWS_PER_TURN):
        if start:
            await one_turn()
        part = acls[start : start + ROWS_PER_TURN]
        rows += [orjson.Fragment(orjson.dumps(_resource(links, acl))) for acl in part]
    return rows


def _url(links: Links, acl: Acl) -> str:
    """Return the URL of an entry, with all of its fields in the query, because an entry has no id."""
    return f"{links.url('acls')}?{urlencode(NEW_ACL.of(acl, resource_name=acl.name))}"


def _resource(links: Links, acl: Acl) -> Resource:
    return {
        "kind": "KafkaAcl",
        "metadata": {
            "self": _url(links, acl),
            "resource_name": f"crn:///kafka={links.cluster_id}/acl={acl.principal}",
        },
        "cluster_id": links.cluster_id,
        **NEW_ACL.of(acl, resource_name=acl.name),
    }
