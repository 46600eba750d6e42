"""Producer ids for idempotent writes. A producer gets its id here once; its writes need no further command.

A producer may have a name. After a restart, it gets its id again by this name, with the next epoch. The next epoch
fences its earlier process, and aborts the transaction that this process left open. Ids are never reused. The sequences
of a producer in a partition are in the partition's log, not here.

An id belongs to the principal that reserved it. Another principal must not write under it; the API checks this
(``http_api.records.producer_owners``). For a named producer, the image stores the principal. Ids without a name come
from blocks of ``IDS_PER_BLOCK`` ids, and each block belongs to one principal. A block takes little memory, so the image
can tell an id's principal long after it was allocated. Ids that were reserved without credentials are in no block.

If a name begins transactions and then is not used for long, the image forgets it. This takes longer than any
transaction. Used again, the name gets another id. Other names are kept for ever, because writes do not change the
image: it cannot tell whether a client still uses such a name.
"""

from collections import Counter
from collections.abc import Iterable

from immutables import Map

from milena.model.errors import (
    ConflictError,
    InvalidRequestError,
    LimitReachedError,
    RequestTooLargeError,
    TooManyProducersError,
)
from milena.model.types import PRODUCER_EPOCH_MAX, WallMs
from raft_meta.machine import bounds
from raft_meta.machine.commands import AllocateProducer, ForgetProducers
from raft_meta.machine.copies import replace
from raft_meta.machine.image import AllocatedProducer, Image, ProducerBlock
from raft_meta.machine.outcome import Outcome

LEVEL = 8
"""The feature level from which on unused names that begin transactions are forgotten."""

OWNERS_LEVEL = 11
"""The feature level from which on the image stores the principal of an id."""

COMMITTED, ABORTED = "committed", "aborted"
"""Values of ``AllocatedProducer.last``."""

NAME_LENGTH_MAX = 255
RESERVED_PREFIX = "milena."
"""Prefix of the names of the nodes' own producers."""
NAMED_MAX = 100_000
"""Largest number of names. It is bounded because most names are kept for ever."""
NAMED_PER_PRINCIPAL_MAX = 10_000
"""Largest number of names of one principal, so that no principal can use up all names."""
IDS_PER_BLOCK = 1_024
BLOCKS_PER_PRINCIPAL_MAX = 1_000
"""Largest number of blocks of one principal: a million ids. If it needs one more, its oldest block is forgotten, and
the ids of that block then belong to no principal."""
BLOCKS_MAX = 20_000
"""Largest number of blocks of all principals. If one more is needed, the oldest block of all is forgotten."""
FORGOTTEN_PER_COMMAND_MAX = 1_000
UNNAMED_KEPT = 10_000
"""How many of the latest ids without a name have an entry, for listings. Older ids need none: see
``Image.producer_epoch``."""


def apply(image: Image, now_ms: WallMs, command: AllocateProducer | ForgetProducers) -> Outcome:
    """Allocate a producer id, or give a known name its next epoch, or forget names.

    Raises:
        InvalidRequestError: the name is empty or too long.
        ConflictError: the name is a transactional id of Kafka clients.
        TooManyProducersError: there are too many names, in all or of this principal.
        RequestTooLargeError: the command names too many producers to forget.
    """
    if isinstance(command, ForgetProducers):
        return _forget(image, command)
    used_ms = now_ms if command.is_transactional and image.feature_level >= LEVEL else WallMs(0)
    principal = command.principal if image.feature_level >= OWNERS_LEVEL else ""
    if command.name is not None:
        if command.name in image.transactional_ids:
            raise ConflictError(
                f"Name '{command.name}' is a transactional id of Kafka clients; choose another name."
            )
        _check_name(command.name)
        known = image.producer_names.get(command.name)
        if known is not None:
            return _next_epoch(image, image.producers[known], command.name, used_ms, principal)
        _check_room(image, principal)
    elif principal:
        return _next_of_block(image, principal)
    return _new_producer(image, command.name, used_ms, principal)


def _check_name(name: str) -> None:
    if not 1 <= len(name) <= NAME_LENGTH_MAX:
        raise InvalidRequestError(f"A producer name has 1..{NAME_LENGTH_MAX} characters.")


def _check_room(image: Image, principal: str) -> None:
    if len(image.producer_names) >= NAMED_MAX:
        raise _too_many_names(image)
    if principal and image.named_counts.get(principal, 0) >= NAMED_PER_PRINCIPAL_MAX:
        raise TooManyProducersError(
            f"{principal} has {NAMED_PER_PRINCIPAL_MAX} named producers already. Use one of their names again, "
            "or a producer without a name."
        )


def with_named(image: Image, name: str, now_ms: WallMs, principal: str) -> Image:
    """Return the image with a producer of a new name, which names transactions of Kafka clients.

    Raises:
        InvalidRequestError, TooManyProducersError: as ``apply``.
    """
    _check_name(name)
    _check_room(image, principal)
    return _new_producer(image, name, WallMs(max(1, now_ms)), principal).image


def used_again(image: Image, name: str, now_ms: WallMs, *, principal: str | None = None) -> Image:
    """Return the image in which the producer of a name was used now, by ``principal`` if one is given."""
    producer = image.producers[image.producer_names[name]]
    owner = producer.principal if principal is None else principal
    after = replace(producer, used_ms=WallMs(max(1, now_ms)), principal=owner)
    return replace(
        image,
        producers=image.producers.set(after.producer_id, after),
        named_counts=_recounted(image.named_counts, producer.principal, owner),
    )


def with_room_for_end(image: Image, name: str) -> Image:
    """Return the image in which a producer can carry a transaction, whose end must be able to raise its epoch.

    If its epochs are used up, the name gets another id.
    """
    producer = image.producers[image.producer_names[name]]
    if producer.producer_epoch < PRODUCER_EPOCH_MAX:
        return image
    return _next_epoch(image, producer, name, producer.used_ms, producer.principal).image


def principal_of(image: Image, producer_id: int) -> str:
    """Return the principal to which an id belongs; empty if to none, or if the id was never allocated."""
    producer = image.producers.get(producer_id)
    if producer is not None:
        return producer.principal
    block = image.producer_blocks.get(producer_id // IDS_PER_BLOCK)
    return "" if block is None else block.principal


def without_principal(image: Image, principal: str) -> Image:
    """Return the image in which no id belongs to the principal, so that a later user with its name gets no ids."""
    for number in image.blocks_of.get(principal, ()):
        image = _without_block(image, number)
    if principal not in image.named_counts:
        return image
    producers = image.producers.mutate()
    for producer in image.producers.values():
        if producer.principal == principal:
            producers[producer.producer_id] = replace(producer, principal="")
    return replace(
        image, producers=producers.finish(), named_counts=image.named_counts.delete(principal)
    )


def blocks_by_principal(blocks: Iterable[ProducerBlock]) -> Map[str, tuple[int, ...]]:
    """Return the numbers of each principal's blocks, in ascending order."""
    found: dict[str, list[int]] = {}
    for block in blocks:
        found.setdefault(block.principal, []).append(block.number)
    return Map({principal: tuple(sorted(numbers)) for principal, numbers in found.items()})


def names_by_principal(producers: Iterable[AllocatedProducer]) -> Map[str, int]:
    """Count the named producers of each principal."""
    return Map(Counter(p.principal for p in producers if p.principal))


def unused(image: Image, since_ms: WallMs) -> Iterable[int]:
    """Yield the ids of producers whose names may be forgotten: those last used at or before ``since_ms``.

    ``used_ms`` is 0 for producers that begin no transactions, so this yields none of them.
    """
    return (p.producer_id for p in image.producers.values() if 0 < p.used_ms <= since_ms)


def _forget(image: Image, command: ForgetProducers) -> Outcome:
    if len(command.producer_ids) > FORGOTTEN_PER_COMMAND_MAX:
        raise RequestTooLargeError(
            f"{len(command.producer_ids)} producers in one command; at most {FORGOTTEN_PER_COMMAND_MAX}."
        )
    remaining, names = image.producers.mutate(), image.producer_names.mutate()
    ids, client_ids = image.transactional_ids, image.transactional_names
    counts = image.named_counts
    for producer_id in command.producer_ids:
        producer = remaining.get(producer_id)
        # Between the search and this command, the name may have been used again. Then it is kept.
        if producer is None or not 0 < producer.used_ms <= command.unused_since_ms:
            continue
        assert producer.name is not None, f"producer {producer_id} begins transactions namelessly"
        kafka = ids.get(producer.name)
        if kafka is not None:
            if kafka.is_open:
                continue
            ids, client_ids = ids.delete(kafka.name), client_ids.delete(kafka.producer_id)
        del remaining[producer_id]
        del names[producer.name]
        counts = _recounted(counts, producer.principal, "")
    count = len(image.producers) - len(remaining)
    if not count:
        return Outcome(image, 0)
    after = replace(
        image,
        producers=remaining.finish(),
        producer_names=names.finish(),
        named_counts=counts,
        transactional_ids=ids,
        transactional_names=client_ids,
    )
    return Outcome(after, count)


def _too_many_names(image: Image) -> LimitReachedError:
    if not bounds.are_in_force(image):
        # Responses are part of the image, so they must equal those of nodes at the first level: exactly this message.
        return LimitReachedError(f"There are {NAMED_MAX} named producers already.")
    return TooManyProducersError(
        f"There are {NAMED_MAX} named producers already, and names are kept for ever; use one of them, or a"
        " producer without a name."
    )


def _recounted(counts: Map[str, int], former: str, present: str) -> Map[str, int]:
    """Return the counts after a name moves from principal ``former`` to ``present``; empty: no principal."""
    if former == present:
        return counts
    for principal, change in ((former, -1), (present, 1)):
        count = counts.get(principal, 0) + change
        if principal:
            counts = counts.set(principal, count) if count else counts.delete(principal)
    return counts


def _next_epoch(
    image: Image, producer: AllocatedProducer, name: str, used_ms: WallMs, principal: str
) -> Outcome:
    if producer.producer_epoch >= PRODUCER_EPOCH_MAX:
        forgotten = replace(
            image,
            producers=image.producers.delete(producer.producer_id),
            named_counts=_recounted(image.named_counts, producer.principal, ""),
        )
        return _new_producer(forgotten, name, used_ms, principal)
    after = replace(
        producer,
        producer_epoch=producer.producer_epoch + 1,
        last="",
        used_ms=used_ms,
        principal=principal,
    )
    return Outcome(
        replace(
            image,
            producers=image.producers.set(after.producer_id, after),
            named_counts=_recounted(image.named_counts, producer.principal, principal),
        ),
        (after.producer_id, after.producer_epoch),
    )


def _next_of_block(image: Image, principal: str) -> Outcome:
    """Allocate the next id of a principal's latest block, or the first id of a new block."""
    numbers = image.blocks_of.get(principal, ())
    block = image.producer_blocks[numbers[-1]] if numbers else None
    if block is None or block.used >= IDS_PER_BLOCK:
        image, block = _new_block(image, principal)
    blocks = image.producer_blocks.set(block.number, replace(block, used=block.used + 1))
    producer_id = block.number * IDS_PER_BLOCK + block.used
    return Outcome(replace(image, producer_blocks=blocks), (producer_id, 0))


def _new_block(image: Image, principal: str) -> tuple[Image, ProducerBlock]:
    numbers = image.blocks_of.get(principal, ())
    if len(numbers) >= BLOCKS_PER_PRINCIPAL_MAX:
        image = _without_block(image, numbers[0])
    elif len(image.producer_blocks) >= BLOCKS_MAX:
        image = _without_block(image, min(image.producer_blocks))
    number = -(-image.next_producer_id // IDS_PER_BLOCK)
    next_producer_id = (number + 1) * IDS_PER_BLOCK
    producers = image.producers.mutate()
    # An allocation of one id forgets one old id. This block skips ids, so it forgets an old id for each of them.
    for old_id in range(image.next_producer_id - UNNAMED_KEPT, next_producer_id - UNNAMED_KEPT):
        old = producers.get(old_id)
        if old is not None and old.name is None:
            del producers[old_id]
    block = ProducerBlock(number=number, principal=principal, used=0)
    after = replace(
        image,
        producers=producers.finish(),
        producer_blocks=image.producer_blocks.set(number, block),
        blocks_of=image.blocks_of.set(principal, (*image.blocks_of.get(principal, ()), number)),
        next_producer_id=next_producer_id,
    )
    return after, block


def _without_block(image: Image, number: int) -> Image:
    principal = image.producer_blocks[number].principal
    left = tuple(other for other in image.blocks_of[principal] if other != number)
    blocks_of = image.blocks_of
    return replace(
        image,
        producer_blocks=image.producer_blocks.delete(number),
        blocks_of=blocks_of.set(principal, left) if left else blocks_of.delete(principal),
    )


def _new_producer(image: Image, name: str | None, used_ms: WallMs, principal: str) -> Outcome:
    producer_id = image.next_producer_id
    producer = AllocatedProducer(
        producer_id=producer_id,
        producer_epoch=0,
        name=name,
        used_ms=WallMs(0) if name is None else used_ms,
        principal=principal,
    )
    producers = image.producers.set(producer_id, producer)
    # Allocating an id forgets the unnamed id that lies ``UNNAMED_KEPT`` below it. So forgetting needs no search.
    old = producers.get(producer_id - UNNAMED_KEPT)
    if old is not None and old.name is None:
        producers = producers.delete(old.producer_id)
    names = image.producer_names
    return Outcome(
        replace(
            image,
            producers=producers,
            producer_names=names if name is None else names.set(name, producer_id),
            next_producer_id=producer_id + 1,
            named_counts=_recounted(image.named_counts, "", principal),
        ),
        (producer_id, 0),
    )
