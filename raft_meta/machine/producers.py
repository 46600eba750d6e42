"""Producer ids for idempotent writes: allocated here once, used by partitions without asking again.

A name gives a producer its id back after a restart, with the next epoch, which fences its earlier life and aborts the
transaction that it left open. Ids are never used twice. What each partition has seen of a producer is in the
partition's own log, not here.
"""

from milena.model.errors import InvalidRequestError, LimitReachedError, TooManyProducersError
from milena.model.types import PRODUCER_EPOCH_MAX
from raft_meta.machine import bounds
from raft_meta.machine.commands import AllocateProducer
from raft_meta.machine.copies import replace
from raft_meta.machine.image import AllocatedProducer, Image
from raft_meta.machine.outcome import Outcome

NAME_LENGTH_MAX = 255
NAMED_MAX = 100_000
"""Names are kept for ever, so there is an end to them."""
UNNAMED_KEPT = 10_000
"""Nameless ids only need the counter; the latest are kept for listings. See ``Image.producer_epoch``."""


def apply(image: Image, command: AllocateProducer) -> Outcome:
    """Allocate a producer id, or give a known name its next epoch; response: (id, epoch).

    Raises:
        InvalidRequestError: an empty or overlong name.
        TooManyProducersError: too many names.
    """
    if command.name is not None:
        if not 1 <= len(command.name) <= NAME_LENGTH_MAX:
            raise InvalidRequestError(f"A producer name has 1..{NAME_LENGTH_MAX} characters.")
        known = image.producer_names.get(command.name)
        if known is not None:
            return _next_epoch(image, image.producers[known], command.name)
        if len(image.producer_names) >= NAMED_MAX:
            raise _too_many_names(image)
    return _new_producer(image, command.name)


def _too_many_names(image: Image) -> LimitReachedError:
    if not bounds.are_in_force(image):
        # Word for word what nodes of the first level answer: answers are part of the image.
        return LimitReachedError(f"There are {NAMED_MAX} named producers already.")
    return TooManyProducersError(
        f"There are {NAMED_MAX} named producers already, and names are kept for ever; use one of them, or a"
        " producer without a name."
    )


def _next_epoch(image: Image, producer: AllocatedProducer, name: str) -> Outcome:
    if producer.producer_epoch >= PRODUCER_EPOCH_MAX:
        forgotten = replace(image, producers=image.producers.delete(producer.producer_id))
        return _new_producer(forgotten, name)
    after = replace(producer, producer_epoch=producer.producer_epoch + 1, last="")
    return Outcome(
        replace(image, producers=image.producers.set(after.producer_id, after)),
        (after.producer_id, after.producer_epoch),
    )


def _new_producer(image: Image, name: str | None) -> Outcome:
    producer_id = image.next_producer_id
    producer = AllocatedProducer(producer_id=producer_id, producer_epoch=0, name=name)
    producers = image.producers.set(producer_id, producer)
    # Each id comes to this point once, so that forgetting costs no search.
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
        ),
        (producer_id, 0),
    )
