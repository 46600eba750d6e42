"""Native endpoint: producer ids for idempotent writes of encoded batches."""

from aiohttp import web

from http_api.describing.schemas import Fields
from http_api.native.transactions.sessions import check_producer_name
from http_api.protocol.answers import json_answer
from http_api.records.producer_owners import note_take_over
from http_api.serving.call import Call
from http_api.shapes.native import PRODUCER
from http_api.shapes.requests import NEW_PRODUCER
from milena.model.access import ResourceType


async def allocate_producer(call: Call) -> web.Response:
    """Return a producer id and epoch. A name that was used before keeps its id, under the next epoch."""
    name = Fields(await call.optional_json_body(), "the body", NEW_PRODUCER.fields).text("name")
    if name is not None:
        check_producer_name("name", name)
    call.rights.authorize_producer(name)
    if name is not None:
        await note_take_over(call.ports.metadata, call.rights.known_principal, name)
    state = await call.ports.metadata.allocate_producer(name)
    # Another principal may have used the name before, and may have written to topics that this caller may not see.
    is_seen = call.rights.seen(ResourceType.TOPIC)
    return json_answer(
        PRODUCER.of(
            state,
            last_sequences={
                topic: {str(partition): sequence for partition, sequence in partitions.items()}
                for topic, partitions in state.last_sequences.items()
                if is_seen(topic)
            },
        )
    )
