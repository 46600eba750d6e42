"""Producer ids for idempotent writes: allocated here once, used by partitions without asking again.

A name gives a producer its id back after a restart, with the next epoch, which fences its earlier life and aborts the
transaction that it left open. Ids are never used twice. What each partition has seen of a producer is in the
partition's own log, not here.

A name that begins transactions is forgotten once nobody used it for long, which no transaction outlives; under the name
there is another id then. Other names are kept for ever: who writes under one says nothing here.
"""

from collections.abc import Iterable

from milena.model.errors import (
    InvalidRequestError,
    LimitReachedError,
    RequestTooLargeError,
    TooManyProducersError,
)
from milena.model.types import PRODUCER_EPOCH_MAX, WallMs
from raft_meta.machine import bounds
from raft_meta.machine.commands import AllocateProducer, ForgetProducers
from raft_meta.machine.copies import replace
from raft_meta.machine.image import AllocatedProducer, Image
from raft_meta.machine.outcome import Outcome

LEVEL = 8
"""The feature level from which on names that begin transactions are forgotten."""

NAME_LENGTH_MAX = 255
NAMED_MAX = 100_000
"""Most names are kept for ever, so there is an end to them."""
FORGOTTEN_PER_COMMAND_MAX = 1_000
UNNAMED_KEPT = 10_000
"""Nameless ids only need the counter; the latest are kept for listings. See ``Image.producer_epoch``."""


def apply(image: Image, now_ms: WallMs, command: AllocateProducer | ForgetProducers) -> Outcome:
    """Allocate a producer id, or give a known name its next epoch, or forget names.

    Raises:
        InvalidRequestError: an empty or overlong name.
        TooManyProducersError: too many names.
        RequestTooLargeError: too many to forget by one command.
    """
    if isinstance(command, ForgetProducers):
        return _forget(image, command)
    used_ms = now_ms if command.is_transactional and image.feature_level >= LEVEL else WallMs(0)
    if command.name is not None:
        if not 1 <= len(command.name) <= NAME_LENGTH_MAX:
            raise InvalidRequestError(f"A producer name has 1..{NAME_LENGTH_MAX} characters.")
        known = image.producer_names.get(command.name)
        if known is not None:
            return _next_epoch(image, image.producers[known], command.name, used_ms)
        if len(image.producer_names) >= NAMED_MAX:
            raise _too_many_names(image)
    return _new_producer(image, command.name, used_ms)


def unused(image: Image, since_ms: WallMs) -> Iterable[int]:
    """Ids whose names may be forgotten: of those that begin transactions, all that were not used after ``since_ms``."""
    return (p.producer_id for p in image.producers.values() if 0 < p.used_ms <= since_ms)


def _forget(image: Image, command: ForgetProducers) -> Outcome:
    if len(command.producer_ids) > FORGOTTEN_PER_COMMAND_MAX:
        raise RequestTooLargeError(
            f"{len(command.producer_ids)} producers in one command; at most {FORGOTTEN_PER_COMMAND_MAX}."
        )
    remaining, names = image.producers.mutate(), image.producer_names.mutate()
    for producer_id in command.producer_ids:
        producer = remaining.get(producer_id)
        # One that was used since is kept.
        if producer is None or not 0 < producer.used_ms <= command.unused_since_ms:
            continue
        assert producer.name is not None, f"producer {producer_id} begins transactions namelessly"
        del remaining[producer_id]
        del names[producer.name]
    count = len(image.producers) - len(remaining)
    if not count:
        return Outcome(image, 0)
    after = replace(image, producers=remaining.finish(), producer_names=names.finish())
    return Outcome(after, count)


def _too_many_names(image: Image) -> LimitReachedError:
    if not bounds.are_in_force(image):
        # Word for word what nodes of the first level answer: answers are part of the image.
        return LimitReachedError(f"There are {NAMED_MAX} named producers already.")
    return TooManyProducersError(
        f"There are {NAMED_MAX} named producers already, and names are kept for ever; use one of them, or a"
        " producer without a name."
    )


def _next_epoch(image: Image, producer: AllocatedProducer, name: str, used_ms: WallMs) -> Outcome:
    if producer.producer_epoch >= PRODUCER_EPOCH_MAX:
        forgotten = replace(image, producers=image.producers.delete(producer.producer_id))
        return _new_producer(forgotten, name, used_ms)
    after = replace(producer, producer_epoch=producer.producer_epoch + 1, last="", used_ms=used_ms)
    return Outcome(
        replace(image, producers=image.producers.set(after.producer_id, after)),
        (after.producer_id, after.producer_epoch),
    )


def _new_producer(image: Image, name: str | None, used_ms: WallMs) -> Outcome:
    producer_id = image.next_producer_id
    producer = AllocatedProducer(
        producer_id=producer_id,
        producer_epoch=0,
        name=name,
        used_ms=WallMs(0) if name is None else used_ms,
    )
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
