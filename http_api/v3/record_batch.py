"""v3 produce: several records in one request. The client gives each record an id, which its receipt repeats.

If one record fails, the others are still appended. The response has the status 207 and two lists: receipts of the
records that were appended, and errors of the others, each in the order of the request. If the list itself is invalid,
no record is appended.
"""

import re

import orjson
from aiohttp import web

from http_api.describing.schemas import Fields
from http_api.formats import exact_json
from http_api.protocol.answers import json_answer
from http_api.protocol.media import check_json_type
from http_api.serving.call import Call
from http_api.shapes.v3_records import BATCH
from http_api.v3.receipts import Item, append, item_of, job_of
from milena.model.errors import InvalidRecordError, MalformedRequestError

ENTRIES_MAX = 1000
_ID = re.compile(r"[0-9A-Za-z_-]{1,80}")


async def produce_batch(call: Call) -> web.Response:
    """Append the records of all entries."""
    check_json_type(call.header("Content-Type"))
    job = await job_of(call)
    ids, items = _entries(exact_json.loads(await call.body.whole()))
    successes: list[dict[str, object]] = []
    failures: list[dict[str, object]] = []
    for name, receipt in zip(ids, await append(call, job, items), strict=True):
        row: dict[str, object] = orjson.loads(receipt)
        if row["error_code"] == 200:
            del row["error_code"]
            successes.append({"id": name, **row})
        else:
            failures.append({"id": name, **row})
    return json_answer({"successes": successes, "failures": failures}, status=207)


def _entries(body: object) -> tuple[list[str], list[Item]]:
    """Return the ids of the entries, and their records.

    Raises:
        MalformedRequestError, InvalidFieldError, InvalidRecordError: the list or an id is invalid.
    """
    entries = Fields(body, "the body", BATCH.fields).required_items("entries")
    if not 1 <= len(entries) <= ENTRIES_MAX:
        raise InvalidRecordError(
            f"'entries' holds {len(entries)} records; send 1 to {ENTRIES_MAX} in one request"
        )
    names: dict[str, None] = {}
    items = []
    for place, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise MalformedRequestError(f"entries[{place}] must be a JSON object")
        name = entry.get("id")
        if not isinstance(name, str) or _ID.fullmatch(name) is None:
            raise InvalidRecordError(
                f"entries[{place}]: 'id' must be 1 to 80 letters, digits, '-' or '_'"
            )
        if name in names:
            raise InvalidRecordError(f"entries[{place}]: the id '{name}' is there twice")
        names[name] = None
        items.append(item_of({key: value for key, value in entry.items() if key != "id"}))
    return list(names), items
