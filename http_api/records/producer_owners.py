"""v2: check that a producer id belongs to the caller that writes with it, or ends a transaction of it.

A producer id is a number that any client can guess. If a caller wrote with the id of another principal and the next
sequence numbers, that principal's next records would count as retries and would not be written. The replicated state
has the owner of each id (``raft_meta.machine.producers``).
"""

from collections.abc import Callable

from http_api.access.rights import CallerRights
from http_api.ports.node import MetadataPort
from milena.model.access import Operation, ResourceType
from milena.model.errors import InvalidProducerError, StaleProducerEpochError
from raft_meta.machine.image import Image
from raft_meta.machine.producers import RESERVED_PREFIX, principal_of


async def authorize_producer_id(
    rights: CallerRights,
    metadata: MetadataPort,
    producer_id: int,
    producer_epoch: int,
    *,
    is_abort: bool = False,
    may_raise_epoch: bool = False,
) -> None:
    """Require that the caller may write with this producer id, or end its transaction.

    ``is_abort``: the caller only aborts. An operator may then also abort the transaction of a one-request write, whose
    producer id belongs to a node. ``may_raise_epoch``: a producer without a name raises its epoch by itself (KIP-360).

    Raises:
        ForbiddenError: the producer id belongs to another principal, or does not exist; the message does not say which.
        StaleProducerEpochError: another principal has taken over the producer's name.
        InvalidProducerError: the producer id belongs to a node.
        NoQuorumError: this node does not know the id, and no majority responded.
    """
    image = metadata.image
    # The id may have been allocated a moment ago, and this node does not know it yet. Ask the quorum, but not in a
    # cluster without credentials, where ids have no owners.
    heard_epoch = 0 if may_raise_epoch else producer_epoch
    if rights.known_principal and _is_unheard(image, producer_id, heard_epoch):
        image = await metadata.current_image()
    producer = image.producers.get(producer_id)
    name = None if producer is None else producer.name
    owner = principal_of(image, producer_id)
    is_given_out = producer is not None or 0 < producer_id < image.next_producer_id
    may = rights.may_write_as(name, owner) and not _is_transactional_client(
        image, rights, producer_id
    )
    if not (may and (is_given_out or rights.caller.is_superuser)):
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


async def authorize_transactional_id(
    rights: CallerRights, metadata: MetadataPort, name: str
) -> None:
    """Require that the caller may use the open transaction of this name: the right to the name is not enough.

    Raises:
        ForbiddenError: the caller may not, or the name belongs to another principal, which began last.
    """
    rights.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, (name,))
    image = metadata.image
    if not rights.may_write_as(name, _owner(image, name)):
        # The caller may have taken over the name a moment ago at another node.
        image = await metadata.current_image()
        if not rights.may_write_as(name, _owner(image, name)):
            rights.refuse_name(name)


def takes_name(image: Image, name: str) -> bool:
    """Return whether a client over HTTP can take over a name: those of Kafka clients are refused."""
    return name not in image.transactional_ids


async def note_take_over(
    metadata: MetadataPort,
    principal: str,
    name: str,
    *,
    takes: Callable[[Image, str], bool] = takes_name,
) -> None:
    """If ``principal`` takes over a producer name of another one, write that to the audit log first.

    Taking over a name aborts its open transaction. ``takes`` tells by the present image whether the request will: a
    request that is going to be refused is not in the log.

    Raises:
        NoQuorumError: the entry could not be written, so the name must not be taken over.
    """
    if _owner(metadata.image, name) in ("", principal):
        return
    image = await metadata.current_image()
    owner = _owner(image, name)
    if owner not in ("", principal) and takes(image, name):
        producer_id = image.producer_names.get(name)
        change = {"name": name, "producer_id": producer_id, "principal": owner}
        await metadata.note("take_over_producer", change)


def _owner(image: Image, name: str) -> str:
    producer_id = image.producer_names.get(name)
    return "" if producer_id is None else principal_of(image, producer_id)


def _is_transactional_client(image: Image, rights: CallerRights, producer_id: int) -> bool:
    """Return whether the id is that of a Kafka client with a transactional id, which numbers only its own records."""
    if not rights.known_principal or rights.caller.is_superuser:
        return False
    if producer_id in image.producers or principal_of(image, producer_id):
        return False
    return producer_id in image.transactional_names


def _is_unheard(image: Image, producer_id: int, producer_epoch: int) -> bool:
    known = image.producer_epoch(producer_id)
    return known is None or producer_epoch > known
