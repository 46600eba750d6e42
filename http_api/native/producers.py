"""Native: producer ids for idempotent writes of encoded batches."""

from aiohttp import web

from http_api.answers import json_answer
from http_api.call import Call
from http_api.errors import InvalidFieldError
from http_api.schemas import Fields, parse_json

_FIELDS = frozenset({"name"})
_NAME_CHARS_MAX = 255


async def allocate_producer(call: Call) -> web.Response:
    """A producer id and epoch. A name that was used before keeps its id, under the next epoch."""
    name = None
    body = await call.body()
    if body:
        name = Fields(parse_json(body), "the body", _FIELDS).text("name")
    if name is not None and not (1 <= len(name) <= _NAME_CHARS_MAX and name.isprintable()):
        raise InvalidFieldError(f"'name' must be 1 to {_NAME_CHARS_MAX} printable characters")
    state = await call.ports.metadata.allocate_producer(name)
    return json_answer(
        {
            "producer_id": state.producer_id,
            "producer_epoch": state.producer_epoch,
            "last_sequences": {
                topic: {str(partition): sequence for partition, sequence in partitions.items()}
                for topic, partitions in state.last_sequences.items()
            },
        }
    )
