"""``apply``: order, clock, refusals and what must stop a node."""

from dataclasses import replace
from typing import NoReturn

import pytest

from milena.model.errors import (
    CorruptLogError,
    FeatureLevelError,
    MilenaError,
    NotReadyError,
    TopicNotFoundError,
)
from milena.model.types import WallMs
from raft_meta.machine import codec
from raft_meta.machine import commands as c
from raft_meta.machine.apply import APPLY, apply
from raft_meta.machine.image import Image
from raft_meta.machine.topics import topics
from tests.support.machine.images import TOPIC_ID, Cluster, register


def envelope(command: c.Command, *, sequence: int = 1, now_ms: int = 0) -> c.Envelope:
    return c.Envelope(
        proposer=1, incarnation=1, sequence=sequence, now_ms=WallMs(now_ms), command=command
    )


def test_every_command_can_be_applied() -> None:
    assert APPLY.keys() == codec.LEVELS.keys()


def test_applied_time_never_runs_backwards() -> None:
    command = c.InitCluster(cluster_id="a", voters=(1,), feature_level=1)
    first = apply(Image(), 5, envelope(command, now_ms=700))
    second = apply(first.image, 9, envelope(command, sequence=2, now_ms=300))
    assert (second.image.index, second.image.now_ms) == (9, 700)


def test_an_index_that_does_not_grow_is_a_broken_invariant() -> None:
    image = Cluster().image
    with pytest.raises(AssertionError, match="not above"):
        apply(image, image.index, envelope(c.ClaimController(broker_id=1)))


def test_nothing_but_birth_is_accepted_before_the_cluster_has_an_id() -> None:
    applied = apply(Image(), 1, envelope(register(1)))
    assert isinstance(applied.error, NotReadyError)
    assert applied.image.brokers == Image().brokers


def test_a_refusal_travels_in_the_response() -> None:
    applied = Cluster().do(c.DeleteTopic(topic_id=TOPIC_ID))
    assert isinstance(applied.error, TopicNotFoundError)
    with pytest.raises(TopicNotFoundError, match=TOPIC_ID):
        codec.decode_response(applied.response)


def test_a_retry_is_answered_and_not_applied_again() -> None:
    cluster = Cluster()
    once = cluster.envelope(c.AllocateProducer(name=None))
    first = cluster.apply(once)
    again = cluster.apply(once)
    assert again.response == first.response
    assert again.error is None
    assert again.image == replace(first.image, index=again.image.index)


def test_a_retry_of_a_refused_command_is_refused_with_the_same_code() -> None:
    cluster = Cluster(level=codec.CODES_LEVEL)
    once = cluster.envelope(c.DeleteTopic(topic_id=TOPIC_ID))
    cluster.apply(once)
    with pytest.raises(TopicNotFoundError, match="An earlier try of this"):
        codec.decode_response(cluster.apply(once).response)


def test_nodes_that_word_a_refusal_differently_have_the_same_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As two releases may, while a cluster is upgraded node by node."""

    def image_with(words: str) -> Image:
        def refuse(*_: object) -> NoReturn:
            raise TopicNotFoundError(words)

        with monkeypatch.context() as patched:
            patched.setattr(topics, "apply", refuse)
            cluster = Cluster(level=codec.CODES_LEVEL)
            assert cluster.do(c.DeleteTopic(topic_id=TOPIC_ID)).error is not None
            return cluster.image

    one, other = image_with("is no topic"), image_with("is not a topic")
    assert codec.image_hash(one) == codec.image_hash(other)


def test_below_the_level_of_codes_the_image_has_the_words_that_earlier_releases_keep() -> None:
    cluster = Cluster(level=codec.CODES_LEVEL - 1)
    once = cluster.envelope(c.DeleteTopic(topic_id=TOPIC_ID))
    first = cluster.apply(once)
    assert cluster.apply(once).response == first.response


def test_a_check_of_the_image_changes_nothing_of_it() -> None:
    cluster = Cluster()
    before = cluster.image
    applied = cluster.do(c.CheckImage(index=before.index, image_hash=b"another"))
    assert applied.error is None
    assert replace(applied.image, index=0, now_ms=0, proposers=before.proposers) == replace(
        before, index=0, now_ms=0
    )


def test_a_command_above_the_clusters_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(codec.LEVELS, c.AllocateProducer, 2)
    applied = Cluster().do(c.AllocateProducer(name=None))
    assert isinstance(applied.error, FeatureLevelError)


@pytest.mark.parametrize("is_birth", [True, False])
def test_a_level_that_this_release_does_not_know_stops_the_node(is_birth: bool) -> None:
    level = codec.FEATURE_LEVEL_MAX + 1
    if is_birth:
        command: c.Command = c.InitCluster(cluster_id="a", voters=(1,), feature_level=level)
        image = Image()
    else:
        command, image = c.SetFeatureLevel(feature_level=level), Cluster().image
    with pytest.raises(CorruptLogError, match="Upgrade"):
        apply(image, image.index + 1, envelope(command, sequence=99))


def test_a_birth_without_voters_is_refused() -> None:
    command = c.InitCluster(cluster_id="a", voters=(), feature_level=1)
    applied = apply(Image(), 1, envelope(command))
    assert applied.error is not None
    assert applied.image.cluster_id == ""


def test_a_broker_without_an_id_is_refused() -> None:
    assert isinstance(Cluster().do(register(0)).error, MilenaError)


def test_a_topic_id_is_32_hex_digits_and_new() -> None:
    cluster = Cluster([None])
    assert cluster.create(((1,),), topic_id="x").error is not None
    assert cluster.create(((1,),)).error is None
    refused = cluster.create(((1,),), name="other").error
    assert refused is not None
    assert refused.code == "conflict"
