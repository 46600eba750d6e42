"""Copies of frozen dataclasses with some fields changed."""

from dataclasses import dataclass, fields
from dataclasses import replace as plain_replace

import pytest

from milena.model.types import WallMs
from raft_meta.machine.copies import replace
from raft_meta.machine.image import Image, Topic


@dataclass(frozen=True, slots=True)
class Pair:
    left: int
    right: int = 2


@dataclass(frozen=True, slots=True)
class Careful:
    left: int
    right: int

    def __post_init__(self) -> None:
        assert self.left <= self.right


def test_a_copy_has_the_changes_and_the_rest_of_the_original() -> None:
    pair = Pair(1)
    assert replace(pair, right=5) == Pair(1, 5)
    assert pair == Pair(1, 2)
    assert replace(pair) == pair


def test_a_copy_is_what_the_standard_library_makes() -> None:
    image = Image(index=7, now_ms=WallMs(9), cluster_id="c")
    changed = replace(image, index=8, voters=(1, 2))
    assert changed == plain_replace(image, index=8, voters=(1, 2))
    assert type(changed) is Image
    for part in fields(Image):
        if part.name not in {"index", "voters"}:
            assert getattr(changed, part.name) is getattr(image, part.name)


def test_a_copy_is_frozen_too() -> None:
    with pytest.raises(AttributeError):
        replace(Pair(1), left=3).left = 4  # type: ignore[misc]


def test_what_is_no_field_cannot_be_changed() -> None:
    with pytest.raises(KeyError):
        replace(Pair(1), middle=3)  # type: ignore[call-arg]


def test_a_class_that_checks_itself_is_not_copied_behind_its_back() -> None:
    with pytest.raises(AssertionError, match="does something when it is made"):
        replace(Careful(1, 2), left=3)


def test_every_part_of_an_image_can_be_copied() -> None:
    topic = Topic(
        topic_id="a" * 32,
        name="t",
        partition_count=1,
        replication_factor=1,
        configs=Image().topic_ids,
        created_ms=WallMs(1),
    )
    assert replace(topic, name="u") == plain_replace(topic, name="u")
