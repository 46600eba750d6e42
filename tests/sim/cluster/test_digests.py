"""Digests of different images differ, and digests of equal images are equal."""

from dataclasses import fields, replace
from typing import Any

import pytest
from immutables import Map

from milena.model.types import WallMs
from raft_meta.machine.image import Image, Proposer, Topic
from tests.sim.cluster.digests import ImageDigest

TOPIC = Topic(
    topic_id="a",
    name="t",
    partition_count=2,
    replication_factor=3,
    configs=Map({"retention.ms": "-1", "min.insync.replicas": "2"}),
    created_ms=WallMs(5),
)
PROPOSER = Proposer(incarnation=1, floor=2, window=Map({3: b"three", 4: b"four"}))
IMAGE = Image(index=7, topics=Map({"a": TOPIC}), proposers=Map({1: PROPOSER}))


def test_equal_images_of_two_nodes_are_equal_on_whatever_way_they_came() -> None:
    other, topics = ImageDigest(), Map({"b": TOPIC, "a": TOPIC})
    other.of(replace(IMAGE, topics=topics, proposers=Map()))
    other.of(Image())
    turned = Map({"min.insync.replicas": "2", "retention.ms": "-1"})
    same = replace(IMAGE, topics=topics.delete("b").set("a", replace(TOPIC, configs=turned)))
    assert other.of(same) == ImageDigest().of(IMAGE)


def changed(value: Any) -> Any:
    if isinstance(value, Map):
        return value.set("new", "value")
    return "changed" if value != "changed" else "again"


@pytest.mark.parametrize("name", [field.name for field in fields(Image)])
def test_every_field_of_an_image_counts(name: str) -> None:
    digest = ImageDigest()
    before = digest.of(IMAGE)
    assert digest.of(replace(IMAGE, **{name: changed(getattr(IMAGE, name))})) != before
    assert digest.of(IMAGE) == before


@pytest.mark.parametrize("name", [field.name for field in fields(Topic)])
def test_every_field_of_a_value_counts(name: str) -> None:
    digest = ImageDigest()
    before = digest.of(IMAGE)
    topic = replace(TOPIC, **{name: changed(getattr(TOPIC, name))})
    assert digest.of(replace(IMAGE, topics=IMAGE.topics.set("a", topic))) != before


@pytest.mark.parametrize(
    "proposer",
    [
        replace(PROPOSER, incarnation=2),
        replace(PROPOSER, floor=3),
        replace(PROPOSER, window=PROPOSER.window.set(4, b"five")),
        replace(PROPOSER, window=PROPOSER.window.set(5, b"five")),
        replace(PROPOSER, window=PROPOSER.window.delete(3)),
    ],
)
def test_what_a_proposer_was_answered_counts(proposer: Proposer) -> None:
    digest = ImageDigest()
    before = digest.of(IMAGE)
    assert digest.of(replace(IMAGE, proposers=Map({1: proposer}))) != before
    assert digest.of(replace(IMAGE, proposers=Map({2: PROPOSER}))) != before


def test_a_value_that_came_back_under_another_key_is_looked_at_anew() -> None:
    digest = ImageDigest()
    moved = replace(IMAGE, topics=Map({"b": TOPIC}))
    assert digest.of(moved) != digest.of(IMAGE)
    assert digest.of(moved) == ImageDigest().of(moved)
