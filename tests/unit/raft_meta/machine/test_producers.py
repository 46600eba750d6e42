"""Producer ids: never used twice, and bounded."""

from dataclasses import replace

import pytest

from milena.model.errors import InvalidRequestError, LimitReachedError, TooManyProducersError
from milena.model.types import WallMs
from raft_meta.machine import bounds, codec, producers
from raft_meta.machine import commands as c
from raft_meta.machine.codec import decode_response
from raft_meta.machine.invariants import violations
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


def owned(cluster: Cluster, principal: str, name: str | None = None) -> object:
    command = c.AllocateProducer(name=name, principal=principal)
    return decode_response(cluster.do(command).response)


def principal_of(cluster: Cluster, answer: object) -> str:
    assert isinstance(answer, tuple)
    assert not violations(cluster.image)
    stored = b"".join(codec.encode_image(cluster.image))
    assert codec.decode_image([stored]) == cluster.image
    return producers.principal_of(cluster.image, answer[0])


def test_an_id_belongs_to_the_principal_that_reserved_it() -> None:
    cluster = Cluster(level=producers.OWNERS_LEVEL)
    reserved = [
        (principal, owned(cluster, principal, name))
        for principal in ("User:ann", "User:bob", "User:ann")
        for name in (None, f"{principal} 1", None)
    ]
    assert len({answer for _, answer in reserved}) == 9
    for principal, answer in reserved:
        assert principal_of(cluster, answer) == principal


def test_a_name_that_is_taken_over_belongs_to_the_taker() -> None:
    cluster = Cluster(level=producers.OWNERS_LEVEL)
    first = owned(cluster, "User:ann", "p")
    assert owned(cluster, "User:bob", "p") == (1, 1)
    assert principal_of(cluster, first) == "User:bob"
    assert dict(cluster.image.named_counts) == {"User:bob": 1}
    assert owned(cluster, "", "p") == (1, 2)
    assert principal_of(cluster, first) == ""
    assert not cluster.image.named_counts


def test_principals_are_not_stored_below_their_level() -> None:
    cluster = Cluster(level=producers.OWNERS_LEVEL - 1)
    for name in (None, "p"):
        assert principal_of(cluster, owned(cluster, "User:ann", name)) == ""
    assert cluster.image.next_producer_id == 3


def test_however_many_ids_one_principal_reserves_the_others_keep_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producers, "IDS_PER_BLOCK", 4)
    monkeypatch.setattr(producers, "BLOCKS_PER_PRINCIPAL_MAX", 3)
    monkeypatch.setattr(producers, "UNNAMED_KEPT", 3)
    cluster = Cluster(level=producers.OWNERS_LEVEL)
    of_ann = owned(cluster, "User:ann")
    of_bob = [owned(cluster, "User:bob") for _ in range(40)]
    assert len(set(of_bob)) == 40
    assert principal_of(cluster, of_ann) == "User:ann"
    # His own oldest ones become any writer's.
    assert {principal_of(cluster, answer) for answer in of_bob[:28]} == {""}
    assert {principal_of(cluster, answer) for answer in of_bob[28:]} == {"User:bob"}
    assert [cluster.image.producer_epoch(answer[0]) for answer in of_bob] == [0] * 40  # type: ignore[index]


def test_all_blocks_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "BLOCKS_MAX", 2)
    cluster = Cluster(level=producers.OWNERS_LEVEL)
    first, second, third = (owned(cluster, f"User:{name}") for name in ("a", "b", "c"))
    assert [principal_of(cluster, answer) for answer in (first, second, third)] == [
        "",
        "User:b",
        "User:c",
    ]


def test_ids_that_a_block_passes_over_leave_no_row_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "UNNAMED_KEPT", 3)
    monkeypatch.setattr(producers, "IDS_PER_BLOCK", 4)
    cluster = Cluster(level=producers.OWNERS_LEVEL)
    for _ in range(3):
        for _ in range(5):
            owned(cluster, "")
        for _ in range(5):
            owned(cluster, "User:ann")
    assert len(cluster.image.producers) <= 3
    assert principal_of(cluster, owned(cluster, "")) == ""


def test_one_principal_has_so_many_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "NAMED_PER_PRINCIPAL_MAX", 2)
    cluster = Cluster(level=producers.OWNERS_LEVEL)
    for name in ("a", "b"):
        owned(cluster, "User:ann", name)
    error = cluster.do(c.AllocateProducer(name="c", principal="User:ann")).error
    assert isinstance(error, TooManyProducersError)
    assert "User:ann" in error.message
    assert owned(cluster, "User:ann", "a") == (1, 1)
    assert owned(cluster, "User:bob", "c") == (3, 0)
    # A name that is forgotten makes room.
    forgotten = replace(cluster.image.producers[1], used_ms=WallMs(1))
    cluster.image = replace(cluster.image, producers=cluster.image.producers.set(1, forgotten))
    cluster.do(c.ForgetProducers(producer_ids=(1,), unused_since_ms=WallMs(5)))
    assert owned(cluster, "User:ann", "d") == (4, 0)


def test_with_a_user_goes_what_belongs_to_it() -> None:
    cluster = Cluster(level=producers.OWNERS_LEVEL)
    cluster.do(c.PutUser(name="ann", version=0, verifiers=("x",), is_superuser=False))
    nameless, named = owned(cluster, "User:ann"), owned(cluster, "User:ann", "p")
    of_bob = owned(cluster, "User:bob")
    cluster.do(c.DeleteUser(name="ann"))
    assert principal_of(cluster, nameless) == principal_of(cluster, named) == ""
    assert principal_of(cluster, of_bob) == "User:bob"
    assert owned(cluster, "User:ann") != nameless
