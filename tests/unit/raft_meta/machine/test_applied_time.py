"""The applied time is set back, and with it all that a clock which was ahead has dated."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from random import Random
from typing import get_type_hints

import pytest
from immutables import Map

from milena.model.errors import StaleControllerEpochError
from milena.model.types import WallMs
from raft_meta.machine import codec, invariants
from raft_meta.machine import commands as c
from raft_meta.machine import image as images
from raft_meta.machine.copies import replace
from raft_meta.machine.image import AuditEntry, Image, Token
from tests.support.machine.access_commands import AccessSource
from tests.support.machine.commands import (
    random_history,
    random_kafka_transaction_history,
    random_transaction_history,
)
from tests.support.machine.images import Cluster

TRUE_MS = 50
NOT_CORRECTED = {
    # Of the future: until when a token is good.
    (Token, "expires_ms"),
    # The records of what was told say what was believed then.
    (AuditEntry, "time_ms"),
}


def correct(image: Image, now_ms: int, *, epoch: int | None = None) -> c.CorrectTime:
    return c.CorrectTime(
        controller_epoch=image.controller_epoch if epoch is None else epoch, now_ms=WallMs(now_ms)
    )


def dated(value: object) -> Iterator[tuple[type, str, int]]:
    """Every time in an image: where it stands, and what it is."""
    if is_dataclass(value):
        hints = get_type_hints(type(value), {**vars(images), "WallMs": WallMs})
        for one in fields(value):
            found = getattr(value, one.name)
            if hints[one.name] is WallMs:
                yield type(value), one.name, found
            elif one.name == "growths":
                yield from ((type(value), "growths", at_ms) for _, at_ms in found)
            else:
                yield from dated(found)
    elif isinstance(value, Map):
        for entry in value.values():
            yield from dated(entry)
    elif isinstance(value, tuple):
        for entry in value:
            yield from dated(entry)


def all_times() -> set[tuple[type, str]]:
    """Every field of the image's types that is a time."""
    kinds = {
        kind for kind in vars(images).values() if isinstance(kind, type) and is_dataclass(kind)
    }
    hints = {kind: get_type_hints(kind) for kind in kinds}
    found = {(kind, name) for kind in kinds for name in hints[kind] if hints[kind][name] is WallMs}
    return found | {(images.Topic, "growths")}


def ahead(image: Image) -> Image:
    """The image, of which the clock was ahead all the time, at a level that corrects it."""
    return replace(image, feature_level=codec.FEATURE_LEVEL_MAX)


def access_history() -> list[Image]:
    """Images with tokens."""
    cluster, source = Cluster(level=codec.FEATURE_LEVEL_MAX), AccessSource(Random(1))
    return [cluster.do(source.next(cluster.image)).image for _ in range(100)]


def test_every_time_of_the_image_is_set_back() -> None:
    seen: set[tuple[type, str]] = set()
    histories = [random_history(seed, 150) for seed in range(30)]
    histories += [random_transaction_history(seed, 150) for seed in range(10)]
    histories += [random_kafka_transaction_history(seed, 150) for seed in range(10)]
    found = [ahead(result.image) for _, results in histories for result in results[::30]]
    for before in [*found, *access_history()]:
        cluster = Cluster()
        cluster.image = before
        cluster.sequence = 10_000
        after = cluster.do(correct(before, TRUE_MS)).image
        seen |= {(kind, name) for kind, name, ms in dated(before) if ms > TRUE_MS}
        late = {(kind, name) for kind, name, ms in dated(after) if ms > TRUE_MS}
        assert late <= NOT_CORRECTED
        assert not list(invariants.violations(after))
    # Else a new time in the image would not be noticed.
    assert seen == all_times()


def test_the_applied_time_goes_on_from_there() -> None:
    cluster = Cluster(level=codec.FEATURE_LEVEL_MAX)
    assert cluster.image.now_ms == 1000
    assert cluster.do(correct(cluster.image, 400)).image.now_ms == 400
    assert cluster.do(c.AllocateProducer(name=None)).image.now_ms == 1000


@pytest.mark.parametrize("now_ms", [1000, 1001, 10**15])
def test_it_is_never_set_forward(now_ms: int) -> None:
    cluster = Cluster(level=codec.FEATURE_LEVEL_MAX)
    applied = cluster.do(correct(cluster.image, now_ms))
    assert (applied.error, applied.image.now_ms) == (None, 1000)


def test_a_deposed_controller_sets_nothing_back() -> None:
    cluster = Cluster(level=codec.FEATURE_LEVEL_MAX)
    applied = cluster.do(correct(cluster.image, 400, epoch=cluster.image.controller_epoch - 1))
    assert isinstance(applied.error, StaleControllerEpochError)
    assert applied.image.now_ms == 1000


def test_what_is_not_late_stays_the_same_object() -> None:
    cluster = Cluster([None] * 3, level=codec.FEATURE_LEVEL_MAX)
    cluster.create(((1, 2, 3),))
    before = replace(cluster.image, now_ms=WallMs(5_000))
    cluster.image = before
    after = cluster.do(correct(before, 2_000)).image
    assert after.topics is before.topics
    assert after.offsets is before.offsets
