"""v2: the check that a producer id belongs to the caller that writes or ends a transaction under it.

A producer id is a number that any client can guess. Sequence numbers under the id tell which records are retries, and
its epoch names its transaction. So a write under another principal's id could make that principal's records look like
retries. Source of the owner: ``raft_meta.machine.producers``.
"""

from http_api.serving.call import Call
from milena.model.errors import InvalidProducerError, StaleProducerEpochError
from raft_meta.machine.image import Image
from raft_meta.machine.producers import RESERVED_PREFIX, principal_of


async def authorize_producer_id(
    call: Call, producer_id: int, producer_epoch: int, *, is_abort: bool = False
) -> None:
    """Refuse unless the caller may write, or end a transaction, as the producer of this id.

    ``is_abort``: a caller with the right to the transaction's name may also abort a node's own transaction.

    Raises:
        ForbiddenError: the producer is another principal's, or there is none; the message does not tell which.
        StaleProducerEpochError: another principal has taken over the producer's name.
        InvalidProducerError: the producer is a node's own.
        NoQuorumError: this node does not know the id, and no majority responded.
    """
    rights = call.rights
    image = call.ports.metadata.image
    # Reserved a moment ago on another node, or never. An open cluster need not know.
    if rights.known_principal and _is_unheard(image, producer_id, producer_epoch):
        image = await call.ports.metadata.current_image()
    producer = image.producers.get(producer_id)
    name = None if producer is None else producer.name
    owner = principal_of(image, producer_id)
    is_given_out = producer is not None or 0 < producer_id < image.next_producer_id
    if not (rights.may_write_as(name, owner) and (is_given_out or rights.caller.is_superuser)):
        is_former = producer is not None and producer_epoch < producer.producer_epoch
        if name is not None and is_former and rights.may_write_as(name, ""):
            raise StaleProducerEpochError(
                f"producer id {producer_id} was taken over, under another epoch than {producer_epoch}; nothing was done"
            )
        rights.refuse_producer(producer_id)
    if name is not None and name.startswith(RESERVED_PREFIX) and not is_abort:
        raise InvalidProducerError(
            f"producer id {producer_id} is a node's own: POST /producers gives one to clients"
        )


def _is_unheard(image: Image, producer_id: int, producer_epoch: int) -> bool:
    known = image.producer_epoch(producer_id)
    return known is None or producer_epoch > known
