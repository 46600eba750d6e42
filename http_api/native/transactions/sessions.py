"""Native endpoints: transactions that clients begin, write and end with separate requests, and a list of open ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from aiohttp import web

from http_api.describing.pages import PARTITIONS, RowPage, matching, sort_param
from http_api.describing.params import ChoiceParam, IntegerParam
from http_api.describing.schemas import Fields, integer_text
from http_api.native.transactions.transact import authorize, group_offsets
from http_api.protocol.answers import json_answer
from http_api.protocol.errors import InvalidFieldError
from http_api.records.produce_head import TIMEOUT_MS
from http_api.records.producer_owners import note_take_over
from http_api.records.transaction_header import (
    authorize_transaction,
    transaction_of,
    transaction_text,
)
from http_api.serving.call import Call
from http_api.shapes import requests as shapes
from http_api.shapes.native import OPEN_TRANSACTION, OPEN_TRANSACTION_PART, TRANSACTION_BEGUN
from milena.model.access import ResourceType
from milena.model.requests import (
    TRANSACTION_TIMEOUT_MS_DEFAULT,
    TRANSACTION_TIMEOUT_MS_MAX,
    OpenTransaction,
    ProducerTransaction,
    TransactionCommit,
    WrittenExtent,
)
from raft_meta.machine.producers import RESERVED_PREFIX

OLDER_THAN_MS = IntegerParam(
    name="older_than_ms",
    description="only those whose first record is this old",
    least=0,
    default=0,
)
UNTIL = ChoiceParam(
    name="until",
    description=(
        "when to answer: `visible`, once readers see it in every partition; `committed`, once it is decided, which is "
        "sooner: readers see it soon, and certainly"
    ),
    words={"visible": True, "committed": False},
    hint="visible or committed",
)


async def begin(call: Call) -> web.Response:
    """Begin the next transaction of a transactional id. If its former transaction is still open, it is aborted."""
    fields = Fields(await call.json_body(), "the body", shapes.BEGIN_TRANSACTION.fields)
    name = fields.required_text("transactional_id")
    check_producer_name("transactional_id", name)
    timeout_ms = fields.integer("timeout_ms", least=1) or TRANSACTION_TIMEOUT_MS_DEFAULT
    if timeout_ms > TRANSACTION_TIMEOUT_MS_MAX:
        raise InvalidFieldError(
            f"'timeout_ms' is {timeout_ms}; a transaction is open for at most {TRANSACTION_TIMEOUT_MS_MAX}"
        )
    call.rights.authorize_producer(name)
    await note_take_over(call.ports.metadata, call.rights.known_principal, name)
    begun = await call.ports.transactions.begin(name, timeout_ms=timeout_ms)
    return json_answer(
        TRANSACTION_BEGUN.of(
            begun,
            transactional_id=name,
            transaction=transaction_text(begun),
            visible=begun.is_former_visible,
        )
    )


def check_producer_name(field: str, name: str) -> None:
    """Raise an error if a name is not valid for a client's producer.

    Raises:
        InvalidFieldError: the message says why.
    """
    if not (1 <= len(name) <= shapes.PRODUCER_NAME_CHARS_MAX and name.isprintable()):
        raise InvalidFieldError(
            f"'{field}' must be 1 to {shapes.PRODUCER_NAME_CHARS_MAX} printable characters"
        )
    if name.startswith(RESERVED_PREFIX):
        raise InvalidFieldError(
            f"'{field}' may not begin with '{RESERVED_PREFIX}': such names are the nodes' own"
        )


async def commit(call: Call) -> web.Response:
    """Commit the acknowledged writes that the body names, and the offsets."""
    transaction = _named(call)
    fields = Fields(await call.json_body(), "the body", shapes.COMMIT_TRANSACTION.fields)
    fields.required_items("writes")
    writes = tuple(
        WrittenExtent(
            topic=row.required_text("topic"),
            partition=row.required_integer("partition", least=0),
            end_offset=row.required_integer("end_offset", least=1),
            records=row.required_integer("records", least=1),
        )
        for row in fields.objects("writes", shapes.WRITTEN_EXTENT.fields)
    )
    if len({(write.topic, write.partition) for write in writes}) < len(writes):
        raise InvalidFieldError("'writes' names a partition twice: its greatest end offset counts")
    offsets = tuple(group_offsets(fields))
    if len(writes) + sum(len(group.offsets) for group in offsets) > shapes.TRANSACTION_OFFSETS_MAX:
        raise InvalidFieldError(
            f"a transaction has at most {shapes.TRANSACTION_OFFSETS_MAX} partitions and offsets"
        )
    await authorize_transaction(call, transaction)
    authorize(call.rights.authorize, (write.topic for write in writes), offsets)
    call.check_groups(commit.group for commit in offsets)
    ended = await call.ports.transactions.commit(
        TransactionCommit(
            transaction=transaction,
            writes=writes,
            offsets=offsets,
            timeout_ms=call.ports.limits.produce_wait_ms(TIMEOUT_MS.read(call.query())),
            until_visible=UNTIL.read(call.query()),
        )
    )
    return json_answer(
        {"committed": True, "visible": ended.is_visible, "next_epoch": ended.next_epoch}
    )


async def abort(call: Call) -> web.Response:
    """Abort the transaction: none of its writes take effect."""
    Fields(await call.optional_json_body(), "the body", frozenset())
    transaction = _named(call)
    await authorize_transaction(call, transaction, is_abort=True)
    left_ms = await call.note(
        "abort_transaction",
        {
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.producer_epoch,
        },
        timeout_ms=call.ports.limits.produce_wait_ms(TIMEOUT_MS.read(call.query())),
    )
    ended = await call.ports.transactions.abort(transaction, timeout_ms=left_ms)
    return json_answer(
        {"aborted": True, "visible": ended.is_visible, "next_epoch": ended.next_epoch}
    )


def _named(call: Call) -> ProducerTransaction:
    return transaction_of(
        *(integer_text(name, call.names[name]) for name in ("producer_id", "producer_epoch"))
    )


@dataclass(frozen=True, slots=True)
class _Open:
    """An open transaction, as its partitions' leaders report it."""

    parts: Sequence[OpenTransaction]

    @property
    def first(self) -> OpenTransaction:
        return self.parts[0]

    @property
    def name(self) -> str:
        return self.first.producer_name or ""

    @property
    def began_ms(self) -> int:
        return min(part.began_ms for part in self.parts)

    @property
    def deadline_ms(self) -> int:
        return self.began_ms + self.first.timeout_ms


_KEYS: Mapping[str, Callable[[_Open], int | str] | None] = {
    "began": None,
    "transaction": lambda row: row.name,
    "timeout": lambda row: row.first.timeout_ms,
    "deadline": lambda row: row.deadline_ms,
    "partitions": lambda row: len(row.parts),
}
SORT = sort_param(_KEYS, "their beginning")


async def list_transactions(call: Call) -> web.Response:
    """Return transactions that are open on leaders, the oldest first."""
    query = call.query()
    age_ms, key, page = OLDER_THAN_MS.read(query), SORT.read(query), RowPage.of(query)
    partitions_max = PARTITIONS.read(query)
    grouped: dict[tuple[int, int], list[OpenTransaction]] = {}
    told = await call.ports.transactions.open_transactions(older_than_ms=age_ms)
    is_seen = call.rights.seen(ResourceType.TOPIC)
    is_name_seen = call.rights.seen(ResourceType.TRANSACTIONAL_ID)
    for found in told.found:
        if not is_seen(found.topic):
            continue
        name = found.producer_name
        # Remove names that the caller may not see before rows are filtered and sorted by name. Otherwise a search, or
        # the order, would reveal them.
        shown = name if name is None or is_name_seen(name) else None
        part = replace(found, producer_name=shown)
        grouped.setdefault((found.producer_id, found.producer_epoch), []).append(part)
    rows = matching((_Open(parts) for parts in grouped.values()), lambda row: row.name, query)
    return json_answer(
        {
            "total": len(rows),
            "transactions": [_row(row, partitions_max) for row in page.cut(rows, key)],
            "silent_nodes": told.silent_nodes,
        }
    )


def _row(row: _Open, partitions_max: int | None) -> dict[str, object]:
    first = row.first
    parts = sorted(row.parts, key=lambda part: (part.topic, part.partition))
    return OPEN_TRANSACTION.of(
        first,
        transactional_id=first.producer_name,
        state="open" if any(part.state == "open" for part in parts) else "ending",
        began_ms=row.began_ms,
        partition_count=len(parts),
        partitions=[OPEN_TRANSACTION_PART.of(part) for part in parts[:partitions_max]],
    )
