"""Producer ids: never used twice, and bounded."""

from dataclasses import replace

import pytest

from milena.model.errors import InvalidRequestError, LimitReachedError, TooManyProducersError
from raft_meta.machine import bounds, producers
from raft_meta.machine import commands as c
from raft_meta.machine.codec import decode_response
from tests.support.machine.images import Cluster


def allocate(cluster: Cluster, name: str | None) -> object:
    return decode_response(cluster.do(c.AllocateProducer(name=name)).response)


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_a_name_is_neither_empty_nor_endless(name: str) -> None:
    applied = Cluster().do(c.AllocateProducer(name=name))
    assert isinstance(applied.error, InvalidRequestError)


def test_epochs_end_and_a_new_id_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "PRODUCER_EPOCH_MAX", 1)
    cluster = Cluster()
    assert [allocate(cluster, "p") for _ in range(4)] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert set(cluster.image.producers) == {2}


def test_nameless_ids_are_forgotten_but_stay_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "UNNAMED_KEPT", 3)
    cluster = Cluster()
    allocate(cluster, "named")
    for _ in range(6):
        allocate(cluster, None)
    assert set(cluster.image.producers) == {1, 5, 6, 7}
    assert cluster.image.producer_epoch(2) == 0
    assert cluster.image.producer_epoch(1) == 0
    assert cluster.image.producer_epoch(8) is None
    assert cluster.image.producer_epoch(0) is None


def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "NAMED_MAX", 1)
    cluster = Cluster()
    allocate(cluster, "p")
    # The first release's word, and so its answer in the image, until no node of it is left.
    assert type(cluster.do(c.AllocateProducer(name="q")).error) is LimitReachedError
    cluster.image = replace(cluster.image, feature_level=bounds.LEVEL)
    error = cluster.do(c.AllocateProducer(name="q")).error
    assert isinstance(error, TooManyProducersError)
    assert "use one of them" in error.message
    assert cluster.do(c.AllocateProducer(name="p")).error is None
