"""Quotas of clients: DescribeClientQuotas (48), AlterClientQuotas (49). They are those of ``milena quotas``.

Source: KIP-546.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from milena.model.access import Operation
from milena.model.errors import MilenaError
from milena.model.quotas import EVERY, QuotaKey
from node.config.budgets import LONG_PROPOSE_MS
from node.kafka.apis.api import Body, KafkaCall, KafkaServices, serves
from node.kafka.apis.items import ItemError, each, error_fields, invalid, repeated, twice
from node.kafka.rights import needs
from node.kafka.wire import cold
from raft_meta.machine.image import Quota

USER, CLIENT_ID = "user", "client-id"
_INT64_MAX = (1 << 63) - 1
EXACT, DEFAULT, ANY = 0, 1, 2
"""How a component of a filter matches a name: the same one, the default, or any."""


def _parts(quota: Quota) -> dict[str, str]:
    """Return the names of an entity by type."""
    both = {USER: quota.user, CLIENT_ID: quota.client_id}
    return {kind: name for kind, name in both.items() if name}


def _names(names: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {"entity_type": kind, "entity_name": None if name == EVERY else name}
        for kind, name in names.items()
    ]


# -- DescribeClientQuotas --------------------------------------------------------------------------


def _filter(components: Iterable[cold.Message]) -> dict[str, str | None]:
    """Return the wanted name of each type; None: any.

    Raises:
        ItemError: a component means nothing.
    """
    found: dict[str, str | None] = {}
    for one in components:
        if one.entity_type not in (USER, CLIENT_ID) or one.entity_type in found:
            raise invalid(f"Filter by {USER} and {CLIENT_ID}, each once.")
        if one.match_type == EXACT and one.match:
            found[one.entity_type] = one.match
        elif one.match_type in (DEFAULT, ANY):
            found[one.entity_type] = EVERY if one.match_type == DEFAULT else None
        else:
            raise invalid("A filter has the match type 0 with a name, 1 (default) or 2 (any).")
    return found


def _fits(quota: Quota, wanted: Mapping[str, str | None], *, is_strict: bool) -> bool:
    parts = _parts(quota)
    if is_strict and parts.keys() != wanted.keys():
        return False
    return all(kind in parts and name in (None, parts[kind]) for kind, name in wanted.items())


@serves(48, "DescribeClientQuotas", versions=(0, 1), access=needs("DESCRIBE_CONFIGS CLUSTER"))
async def _describe(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    try:
        call.rights.authorize_cluster(Operation.DESCRIBE_CONFIGS)
        wanted = _filter(request.components)
        quotas = (await services.metadata.current_image()).quotas
    except (ItemError, MilenaError) as error:
        return call.answer({**error_fields(call, ItemError.of(error)), "entries": None})
    found = [quota for quota in quotas.values() if _fits(quota, wanted, is_strict=request.strict)]
    rows = [
        {
            "entity": _names(_parts(quota)),
            "values": [{"key": key, "value": float(amount)} for key, amount in quota.limits],
        }
        for quota in sorted(found, key=lambda quota: (quota.user, quota.client_id))
    ]
    return call.answer({**error_fields(call, None), "entries": rows})


# -- AlterClientQuotas -----------------------------------------------------------------------------


_Entity = tuple[tuple[str, str | None], ...]
"""Types and names, as they are in a request. As in Kafka, the last name of a type counts."""


def _entity_of(entry: cold.Message) -> _Entity:
    return tuple({part.entity_type: part.entity_name for part in entry.entity}.items())


def _checked_names(entity: _Entity) -> dict[str, str]:
    """Return the names of the entity that is to be changed, by type.

    Raises:
        ItemError: there is no such entity.
    """
    found: dict[str, str] = {}
    for kind, name in entity:
        if kind not in (USER, CLIENT_ID):
            raise invalid(f"A quota is of a {USER}, a {CLIENT_ID}, or one of each.")
        if name == "":
            raise invalid("The name of an entity is empty: name one, or send null for the default.")
        found[kind] = EVERY if name is None else name
    return found


def _changes(ops: Iterable[cold.Message]) -> dict[QuotaKey, int | None]:
    """Return the new values; None: the limit is removed.

    Raises:
        ItemError: a key or a value is none.
    """
    found: dict[QuotaKey, int | None] = {}
    for op in ops:
        try:
            key = QuotaKey(op.key)
        except ValueError:
            raise invalid(
                f"There is no quota {op.key[:64]!r}: use {', '.join(QuotaKey)}."
            ) from None
        if key in found:
            raise invalid(f"{key} is in the entry more than once: name it once.")
        if not op.remove and not (1 <= op.value <= _INT64_MAX and op.value.is_integer()):
            raise invalid(f"{key} is {op.value}: use a whole number from 1 to {_INT64_MAX}.")
        found[key] = None if op.remove else int(op.value)
    return found


@serves(
    49, "AlterClientQuotas", versions=(0, 1), access=needs("ALTER_CONFIGS CLUSTER", is_strict=True)
)
async def _alter(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    # The order of the types makes no difference.
    keys = [frozenset(_entity_of(entry)) for entry in request.entries]
    ambiguous = repeated(keys)
    entries = dict(zip(keys, request.entries, strict=True))

    async def alter(key: frozenset[tuple[str, str | None]]) -> None:
        entry = entries[key]
        call.rights.authorize_cluster(Operation.ALTER_CONFIGS)
        if key in ambiguous:
            raise twice("The entity")
        names, changes = _checked_names(_entity_of(entry)), _changes(entry.ops)
        if changes and not request.validate_only:
            port = services.access.port
            await port.alter_quota(names.get(USER, ""), names.get(CLIENT_ID, ""), changes)

    results = await each(list(entries), alter, timeout_ms=LONG_PROPOSE_MS)
    return call.answer(
        {
            "entries": [
                {
                    **error_fields(call, result),
                    "entity": [
                        {"entity_type": kind, "entity_name": name}
                        for kind, name in _entity_of(entry)
                    ],
                }
                for entry, result in zip(entries.values(), results, strict=True)
            ]
        }
    )


APIS = (_describe, _alter)
