"""InitProducerId (22): an id for an idempotent producer. Transactional ids are refused until transactions exist.

Source: KIP-98, KIP-360.
"""

from http_api.protocol.kafka_codes import KafkaCode, kafka_code_of
from milena.model.errors import MilenaError
from node.kafka.apis.api import Api, Body, KafkaCall, KafkaServices


async def _init_producer_id(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    if request.transactional_id is not None:
        # Clients take this for final and show it. A retriable code would make them ask again and again.
        return _refusal(call, KafkaCode.UNSUPPORTED_VERSION)
    try:
        made = await services.admin.allocate_producer(None)
    except MilenaError as error:
        return _refusal(call, kafka_code_of(error))
    return call.answer(
        {
            "error_code": KafkaCode.NONE,
            "producer_id": made.producer_id,
            "producer_epoch": made.producer_epoch,
        }
    )


def _refusal(call: KafkaCall, code: int) -> Body:
    return call.answer({"error_code": call.note(code), "producer_id": -1, "producer_epoch": -1})


APIS = (
    Api(
        key=22,
        name="InitProducerId",
        first=0,
        last=4,
        flexible_from=2,
        handle=_init_producer_id,
    ),
)
