"""InitProducerId (22): an id for an idempotent producer, or the next epoch of a transactional id.

Source: KIP-98, KIP-360 (a producer asks for its next epoch), KIP-890.
"""

from http_api.protocol.errors import kafka_code_of
from http_api.protocol.kafka_codes import KafkaCode
from http_api.records.producer_owners import note_take_over
from milena.model.errors import FeatureLevelError, ForbiddenError, InvalidRequestError, MilenaError
from node.kafka.apis.api import Body, KafkaCall, KafkaServices, serves
from node.kafka.apis.transactions import transaction_code_of
from node.kafka.rights import needs
from node.services.transactions.transactional_ids import KafkaProducer
from raft_meta.machine.transactional_ids import TIMEOUT_MS_MAX, takes_over

FENCED_FROM = 4
"""The first version in which a fenced client gets PRODUCER_FENCED."""


@serves(
    22,
    "InitProducerId",
    versions=(0, 5),
    access=needs("IDEMPOTENT_WRITE CLUSTER", "WRITE TRANSACTIONAL_ID"),
)
async def _init_producer_id(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    name = request.transactional_id
    try:
        if name is not None:
            call.rights.authorize_producer(name)
            return await _begin(services, call, name, request.transaction_timeout_ms, request)
        call.rights.authorize_producer(None)
        made = await services.admin.allocate_producer(None)
    except ForbiddenError as error:
        # Without a name, Kafka speaks of the right to the cluster, and clients show that.
        cluster = KafkaCode.CLUSTER_AUTHORIZATION_FAILED
        return _refusal(call, cluster if name is None else kafka_code_of(error))
    except MilenaError as error:
        return _refusal(call, kafka_code_of(error))
    return _answer(call, KafkaProducer(made.producer_id, made.producer_epoch))


async def _begin(
    services: KafkaServices, call: KafkaCall, name: str, timeout_ms: int, request: object
) -> Body:
    if not 1 <= timeout_ms <= TIMEOUT_MS_MAX:
        return _refusal(call, KafkaCode.INVALID_TRANSACTION_TIMEOUT)
    producer_id = getattr(request, "producer_id", -1) if call.version >= 3 else -1
    producer_epoch = getattr(request, "producer_epoch", -1) if call.version >= 3 else -1
    if (producer_id < 0) is not (producer_epoch < 0):
        return _refusal(call, KafkaCode.INVALID_REQUEST)
    client = KafkaProducer(producer_id, producer_epoch) if producer_id >= 0 else None
    try:
        await note_take_over(
            services.admin,
            call.rights.known_principal,
            name,
            takes=lambda image, name: takes_over(image, name, client),
        )
        made = await services.transactional_ids.begin(name, timeout_ms=timeout_ms, client=client)
    except FeatureLevelError:
        return _refusal(call, KafkaCode.UNSUPPORTED_VERSION)
    except MilenaError as error:
        is_fenced = call.version >= FENCED_FROM
        is_name = type(error) is InvalidRequestError
        code = KafkaCode.INVALID_REQUEST if is_name else transaction_code_of(error, is_fenced)
        return _refusal(call, code)
    return _answer(call, made)


def _answer(call: KafkaCall, made: KafkaProducer) -> Body:
    return call.answer({"error_code": KafkaCode.NONE, **made._asdict()})


def _refusal(call: KafkaCall, code: int) -> Body:
    return call.answer({"error_code": call.note(code), "producer_id": -1, "producer_epoch": -1})


APIS = (_init_producer_id,)
