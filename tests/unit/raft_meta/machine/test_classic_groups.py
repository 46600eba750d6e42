"""Classic groups in the image: kinds, generations, static successors, offsets, bounds, snapshots."""

from dataclasses import replace

import msgpack
import pytest

from milena.model.errors import (
    FeatureLevelError,
    GenerationError,
    GroupChangedError,
    GroupLimitError,
    GroupNotEmptyError,
    GroupNotFoundError,
    GroupSubscribedError,
    InconsistentGroupProtocolError,
    InvalidConsumerError,
    InvalidRequestError,
    MemberNotFoundError,
    NotCoordinatorError,
)
from milena.model.types import WallMs
from raft_meta.machine import codec, invariants
from raft_meta.machine import commands as c
from raft_meta.machine.groups import classic_groups, group_rules
from raft_meta.machine.image import ClassicGroup, ClassicMember
from tests.support.machine.group_scripts import member
from tests.support.machine.images import TOPIC_ID, ClassicCluster, GroupCluster, commit_of


def one(member_id: str, assignment: bytes = b"", instance_id: str | None = None) -> ClassicMember:
    return ClassicMember(
        member_id=member_id,
        instance_id=instance_id,
        client_id="client",
        host="10.0.0.1",
        session_ms=10_000,
        rebalance_ms=60_000,
        assignment=assignment,
    )


def group_of(*members: ClassicMember, **changes: object) -> ClassicGroup:
    group = ClassicGroup(
        protocol_type="consumer" if members else "",
        protocol="range" if members else "",
        leader=members[0].member_id if members else "",
        members=members,
        has_assignments=True,
    )
    return replace(group, **changes)  # type: ignore[arg-type]


@pytest.fixture
def cluster() -> ClassicCluster:
    return ClassicCluster()


def test_a_generation_is_stored_and_its_version_is_the_index(cluster: ClassicCluster) -> None:
    applied = cluster.finish("g", 1, group_of(one("a", b"1"), one("b", b"2")))
    assert codec.decode_response(applied.response) == cluster.image.index
    group = cluster.image.groups["g"]
    assert (group.version, group.generation, group.member_count) == (cluster.image.index, 1, 2)
    assert group.emptied_ms == 0
    assert group.classic == group_of(one("a", b"1"), one("b", b"2"))
    assert invariants.violations(cluster.image) == []


def test_an_older_cluster_has_no_classic_groups() -> None:
    cluster = ClassicCluster(level=11)
    assert isinstance(cluster.finish("g", 1, group_of(one("a"))).error, FeatureLevelError)
    assert not cluster.image.groups


def test_a_stale_version_or_another_broker_is_refused(cluster: ClassicCluster) -> None:
    cluster.finish("g", 1, group_of(one("a")))
    assert isinstance(
        cluster.finish("g", 2, group_of(one("a")), version=0).error, GroupChangedError
    )
    other = next(b for b in (1, 2, 3) if b != cluster.proposer("g")["broker_id"])
    epoch = cluster.image.brokers[other].broker_epoch
    command = c.PutClassicGroup(
        broker_id=other,
        broker_epoch=epoch,
        group_id="g",
        version=cluster.image.groups["g"].version,
        generation=2,
        classic=group_of(one("a")),
    )
    assert isinstance(cluster.do(command).error, NotCoordinatorError)


@pytest.mark.parametrize(
    ("generation", "changed"),
    [
        (1, group_of(one("a", b"1"), one("b", b"2"))),  # behind
        (2, group_of(one("a", b"1"), one("b", b"3"))),  # another assignment
        (2, group_of(one("a", b"1"))),  # fewer members
        (2, group_of(one("a", b"1"), one("b", b"2"), one("c"))),  # more members
        (2, group_of(one("a", b"1"), one("c", b"2"))),  # a dynamic member is another one
        (2, group_of(one("a", b"1"), one("b", b"2"), leader="b")),
        (2, group_of(one("a", b"1"), one("b", b"2"), protocol="sticky")),
        (classic_groups.GENERATION_MAX + 1, group_of(one("a", b"1"), one("b", b"2"))),
    ],
)
def test_a_generation_never_changes_and_never_goes_back(
    cluster: ClassicCluster, generation: int, changed: ClassicGroup
) -> None:
    cluster.finish("g", 2, group_of(one("a", b"1"), one("b", b"2")))
    before = cluster.image.groups["g"]
    assert type(cluster.finish("g", generation, changed).error) is InvalidRequestError
    assert cluster.image.groups["g"] is before


def test_a_static_member_gets_another_id_in_its_generation(cluster: ClassicCluster) -> None:
    cluster.finish("g", 1, group_of(one("a", b"1", "i"), one("b", b"2")))
    changed = group_of(one("b", b"2"), one("c", b"1", "i"), leader="c")
    assert cluster.finish("g", 1, changed).error is None
    assert group_rules.classic_member_of(cluster.image.groups["g"], "c") is not None
    stolen = group_of(one("b", b"1"), one("d", b"2", "i"), leader="d")
    assert cluster.finish("g", 1, stolen).error is not None


def test_the_kind_changes_only_while_the_group_is_empty(cluster: ClassicCluster) -> None:
    cluster.finish("g", 3, group_of(one("a")))
    held = ((TOPIC_ID, (0,)),)
    refused = cluster.alter("g", 9, [member("m", 9, held, held)]).error
    assert isinstance(refused, InconsistentGroupProtocolError)
    assert "stop them first" in refused.message
    cluster.finish("g", 4, group_of())
    assert cluster.alter("g", 4, [member("m", 4, held, held)]).error is not None, "not above 4"
    assert cluster.alter("g", 5, [member("m", 5, held, held)]).error is None
    assert cluster.image.groups["g"].classic is None
    refused = cluster.finish("g", 6, group_of(one("a"))).error
    assert isinstance(refused, InconsistentGroupProtocolError)
    cluster.alter("g", 6, left=("m",))
    assert cluster.finish("g", 6, group_of(one("a"))).error is not None, (
        "generation 6 was given out"
    )
    assert cluster.finish("g", 7, group_of(one("a"))).error is None
    assert invariants.violations(cluster.image) == []


def test_commits_are_of_members_under_the_generation(cluster: ClassicCluster) -> None:
    cluster.finish("g", 3, group_of(one("a"), one("b")))

    def code(**of: object) -> object:
        applied = cluster.commit(commit_of("g", {0: 5}, **of))  # type: ignore[arg-type]
        answers = codec.decode_response(applied.response)
        assert isinstance(answers, tuple)
        return answers[0]

    assert code(member_id="a", member_epoch=3) == ""
    assert cluster.image.offsets["g"][TOPIC_ID, 0].offset == 5
    assert code(member_id="a", member_epoch=2) == GenerationError.code
    assert code(member_id="a", member_epoch=4) == GenerationError.code
    assert code(member_id="z", member_epoch=3) == MemberNotFoundError.code
    assert code() == GroupNotEmptyError.code
    cluster.finish("g", 4, group_of())
    assert code() == ""


def test_offsets_survive_a_change_of_kind(cluster: ClassicCluster) -> None:
    cluster.commit(commit_of("g", {0: 5}))
    assert cluster.finish("g", 1, group_of(one("a"))).error is None
    assert cluster.image.offsets["g"][TOPIC_ID, 0].offset == 5


def test_a_group_with_members_is_not_deleted_and_keeps_its_offsets(cluster: ClassicCluster) -> None:
    cluster.commit(commit_of("g", {0: 5}))
    cluster.finish("g", 1, group_of(one("a")))
    delete = c.DeleteGroup(group_id="g", **cluster.versioned_proposer("g"))
    expiry = c.GroupExpiry(group_id="g", before_ms=WallMs(1 << 40))
    expire = c.ExpireOffsets(groups=(expiry,), **cluster.proposer("g"))
    assert isinstance(cluster.do(delete).error, GroupNotEmptyError)
    assert codec.decode_response(cluster.do(expire).response) == (0,)
    cluster.finish("g", 2, group_of())
    assert cluster.image.groups["g"].emptied_ms == cluster.image.now_ms
    assert codec.decode_response(cluster.do(expire).response) == (1,)
    assert "g" not in cluster.image.groups
    cluster.finish("g", 1, group_of())
    assert cluster.do(delete).error is None
    assert "g" not in cluster.image.groups


def test_single_offsets_are_deleted(cluster: ClassicCluster) -> None:
    def delete(group_id: str, *numbers: int) -> c.DeleteOffsets:
        partitions = tuple((TOPIC_ID, number) for number in numbers)
        by = cluster.versioned_proposer(group_id)
        return c.DeleteOffsets(group_id=group_id, partitions=partitions, **by)

    assert isinstance(cluster.do(delete("g", 0)).error, GroupNotFoundError)
    cluster.commit(commit_of("g", {0: 5, 1: 6}))
    cluster.finish("g", 1, group_of(one("a")))
    assert codec.decode_response(cluster.do(delete("g", 0, 3)).response) == 1
    assert set(cluster.image.offsets["g"]) == {(TOPIC_ID, 1)}
    assert codec.decode_response(cluster.do(delete("g", 1)).response) == 1
    assert "g" not in cluster.image.offsets
    assert invariants.violations(cluster.image) == []
    cluster.commit(commit_of("h", {0: 5}))
    cluster.alter("h", 1, [member("m", 1)])
    assert isinstance(cluster.do(delete("h", 0)).error, GroupSubscribedError)


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        (group_of(one("")), InvalidConsumerError),
        (group_of(one("a" * 256)), InvalidConsumerError),
        (group_of(one("a", instance_id="")), InvalidConsumerError),
        (group_of(replace(one("a"), host="\x7f")), InvalidConsumerError),
        (group_of(replace(one("a"), session_ms=0)), InvalidConsumerError),
        (group_of(replace(one("a"), rebalance_ms=86_400_001)), InvalidConsumerError),
        (group_of(one("a"), protocol="x" * 256), InvalidConsumerError),
        (group_of(one("a"), protocol_type="\n"), InvalidConsumerError),
        (group_of(one("a"), protocol=""), InvalidRequestError),
        (group_of(one("a"), protocol_type=""), InvalidRequestError),
        (group_of(one("b"), one("a")), InvalidRequestError),
        (group_of(one("a"), one("a")), InvalidRequestError),
        (group_of(one("a", b"", "i"), one("b", b"", "i")), InvalidRequestError),
        (group_of(one("a"), leader="b"), InvalidRequestError),
        (group_of(leader="b"), InvalidRequestError),
        (group_of(protocol="range"), InvalidRequestError),
        (group_of(one("a", b"1"), has_assignments=False), InvalidRequestError),
        (group_of(one("a", bytes(group_rules.ASSIGNMENT_BYTES_MAX + 1))), InvalidRequestError),
        (group_of(*(one(f"{n:04}") for n in range(1_001))), GroupLimitError),
        (
            group_of(*(replace(one(f"{n:0255}"), client_id="ü" * 255) for n in range(600))),
            GroupLimitError,
        ),
    ],
)
def test_a_generation_out_of_bounds_is_refused(
    cluster: ClassicCluster, changed: ClassicGroup, kind: type[Exception]
) -> None:
    assert type(cluster.finish("g", 1, changed).error) is kind
    assert "g" not in cluster.image.groups


def test_the_largest_group_fits_into_a_command(cluster: ClassicCluster) -> None:
    share = bytes(group_rules.ASSIGNMENT_BYTES_MAX // 1_000)
    members = [replace(one(f"{n:0100}", share), client_id="c" * 280) for n in range(1_000)]
    members = [replace(found, client_id="c" * 240) for found in members]
    command = c.PutClassicGroup(
        group_id="g", version=0, generation=1, classic=group_of(*members), **cluster.proposer("g")
    )
    assert len(codec.encode_envelope(cluster.envelope(command))) < 1 << 20
    assert cluster.do(command).error is None


def test_a_snapshot_has_classic_groups_in_sections_of_their_own(cluster: ClassicCluster) -> None:
    cluster.finish("g", 2, group_of(one("a", b"1", "i"), one("b", b"2")))
    cluster.finish("h", 1, group_of())
    chunks = list(codec.encode_image(cluster.image))
    assert codec.decode_image(chunks) == cluster.image
    sections = dict(msgpack.unpackb(chunk[8:]) for chunk in chunks[1:])
    assert sections[19] == [["g", "consumer", "range", "a", True], ["h", "", "", "", True]]
    assert sections[20] == [
        ["g", ["a", "i", "client", "10.0.0.1", 10_000, 60_000, b"1"]],
        ["g", ["b", None, "client", "10.0.0.1", 10_000, 60_000, b"2"]],
    ]


def test_without_classic_groups_an_image_has_no_new_section() -> None:
    cluster = GroupCluster()
    cluster.alter("g", 1, [member("a", 1)])
    chunks = list(codec.encode_image(cluster.image))[1:]
    assert not {19, 20} & {msgpack.unpackb(chunk[8:])[0] for chunk in chunks}


def test_commands_are_a_promise() -> None:
    by = {"broker_id": 1, "broker_epoch": 2, "group_id": "g"}
    put = c.PutClassicGroup(version=3, generation=4, classic=group_of(one("a", b"1")), **by)  # type: ignore[arg-type]
    delete = c.DeleteOffsets(partitions=((TOPIC_ID, 5),), **by)  # type: ignore[arg-type]
    row = ["a", None, "client", "10.0.0.1", 10_000, 60_000, b"1"]
    for command, tag, wanted in (
        (put, 40, [1, 2, "g", 3, 4, ["consumer", "range", "a", [row], True]]),
        (delete, 41, [1, 2, "g", [[TOPIC_ID, 5]]]),
    ):
        encoded = codec.encode_envelope(ClassicCluster().envelope(command))
        assert msgpack.unpackb(encoded)[5:] == [tag, wanted]
        assert codec.decode_envelope(encoded).command == command
