"""v2: the header that makes a write part of a transaction; its value comes from ``POST /transactions:begin``."""

from dataclasses import replace

from http_api.describing.params import Param, ParamPlace
from http_api.describing.schemas import integer_text
from http_api.records.producer_owners import authorize_producer_id
from http_api.serving.call import Call
from http_api.serving.unknown import TRANSACTION_HEADER
from http_api.shapes.blocks import text
from milena.model.errors import MalformedRequestError
from milena.model.requests import TRANSACTION_TIMEOUT_MS_MAX, Acks, ProducerTransaction
from milena.model.types import PRODUCER_EPOCH_MAX

TRANSACTION = Param(
    name=TRANSACTION_HEADER,
    place=ParamPlace.HEADER,
    description=(
        "the transaction that the records belong to, as `POST /transactions:begin` gave it; they count once it is "
        "committed. With `acks=all`, the default"
    ),
    schema=text(pattern="^[0-9]{1,19}:[0-9]{1,5}(:[0-9]{1,6})?$"),
    example="7:0:30000",
)


def transaction_text(transaction: ProducerTransaction) -> str:
    """Return the header's value."""
    return f"{transaction.producer_id}:{transaction.producer_epoch}:{transaction.timeout_ms}"


async def named_transaction(
    call: Call, acks: Acks, *, is_conditional: bool = False
) -> ProducerTransaction | None:
    """Return the transaction in the header of a write; None without a header.

    Raises:
        MalformedRequestError: the header is invalid, or such a write cannot be part of a transaction.
    """
    if TRANSACTION.name not in call.request.headers:
        return None
    given = call.header(TRANSACTION.name)
    parts = given.split(":")
    if not 2 <= len(parts) <= 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise MalformedRequestError(
            f"{TRANSACTION.name} got '{given}': give ID:EPOCH:TIMEOUT_MS, which POST /transactions:begin answers"
        )
    numbers = [integer_text(TRANSACTION.name, part) for part in parts]
    if acks is not Acks.ALL:
        raise MalformedRequestError(
            "what a transaction writes is committed with it: send it with acks=all, without async=true"
        )
    if is_conditional:
        raise MalformedRequestError(
            "a write of a transaction cannot be conditional: leave If-Match out"
        )
    transaction = transaction_of(numbers[0], numbers[1])
    await authorize_transaction(call, transaction)
    if len(numbers) == 2:
        return transaction
    if not 1 <= numbers[2] <= TRANSACTION_TIMEOUT_MS_MAX:
        raise MalformedRequestError(
            f"{TRANSACTION.name} got '{given}': a transaction is open for 1 to {TRANSACTION_TIMEOUT_MS_MAX} ms"
        )
    return replace(transaction, timeout_ms=numbers[2])


async def authorize_transaction(
    call: Call, transaction: ProducerTransaction, *, is_abort: bool = False
) -> None:
    """Require that the caller may write in this transaction, or end it.

    Raises:
        MilenaError: see ``authorize_producer_id``.
    """
    await authorize_producer_id(
        call.rights,
        call.ports.metadata,
        transaction.producer_id,
        transaction.producer_epoch,
        is_abort=is_abort,
    )


def transaction_of(producer_id: int, producer_epoch: int) -> ProducerTransaction:
    """Return the transaction with this producer id and epoch.

    Raises:
        MalformedRequestError: a number is outside of the range of valid ones.
    """
    if producer_id < 0 or not 0 <= producer_epoch < PRODUCER_EPOCH_MAX:
        raise MalformedRequestError(
            f"no transaction is named {producer_id}:{producer_epoch}: it is its producer's id, from 0, and epoch, from "
            f"0 to {PRODUCER_EPOCH_MAX - 1}, which POST /transactions:begin answers"
        )
    return ProducerTransaction(producer_id=producer_id, producer_epoch=producer_epoch)
