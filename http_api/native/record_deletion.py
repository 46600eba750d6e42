"""Native endpoint: deleting the oldest records of a partition."""

from aiohttp import web

from http_api.describing.schemas import Fields
from http_api.protocol.answers import json_answer
from http_api.protocol.errors import InvalidFieldError
from http_api.records.produce_head import TIMEOUT_MS
from http_api.serving.call import Call
from http_api.serving.lookup import partition_number
from http_api.shapes.requests import DELETE_RECORDS, LATEST


async def delete_records(call: Call) -> web.Response:
    """Delete the records below an offset, on every in-sync replica."""
    partition = partition_number(call.names)
    timeout_ms = call.ports.limits.produce_wait_ms(TIMEOUT_MS.read(call.query()))
    fields = Fields(await call.json_body(), "the body", DELETE_RECORDS.fields)
    before = None
    if fields.raw("before_offset") != LATEST:
        before = fields.integer("before_offset", least=0)
        if before is None:
            raise InvalidFieldError(
                f"the body: 'before_offset' is missing; give an offset, or '{LATEST}'"
            )
    left_ms = await call.note(
        "delete_records",
        {"topic": call.names["topic"], "partition": partition, "before_offset": before},
        timeout_ms=timeout_ms,
    )
    start = await call.ports.deletions.delete_records(
        call.names["topic"], partition, before, timeout_ms=left_ms
    )
    return json_answer({"partition": partition, "log_start_offset": start})
