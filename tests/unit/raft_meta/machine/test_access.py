"""Users, tokens and entries in the state: bounds and format; what commands do is in the golden scripts."""

import dataclasses
from random import Random
from typing import Any

import msgpack  # type: ignore[import-untyped]  # ships no type hints
import pytest

from milena.model.access import ScramMechanism
from milena.model.errors import AccessLimitError
from milena.model.types import WallMs
from raft_meta.machine import codec
from raft_meta.machine import commands as c
from raft_meta.machine.access import access
from raft_meta.machine.copies import replace
from raft_meta.machine.image import Grant, ScramCredential
from tests.support.machine.access_commands import random_scram
from tests.support.machine.access_scripts import acl_of
from tests.support.machine.images import Cluster


def cluster_with(*acls: str, level: int = access.LEVEL) -> Cluster:
    cluster = Cluster(level=level)
    cluster.do(c.InitAccess(name="root", verifier="h", access_mode="required"))
    cluster.do(c.AlterAcls(added=tuple(acl_of(text) for text in acls), removed=()))
    return cluster


def test_tokens_that_are_over_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "TOKENS_MAX", 2)
    cluster = cluster_with()
    root = cluster.image.users["root"]

    def create(number: int, expires_ms: int) -> None:
        applied = cluster.do(
            c.CreateToken(
                token_id=f"{number:08x}",
                user="root",
                user_index=root.created_index,
                secret_hash=bytes(32),
                note="",
                grants=(),
                expires_ms=WallMs(expires_ms),
            )
        )
        if applied.error is not None:
            raise applied.error

    create(1, 1)
    create(2, 0)
    create(3, 0)
    assert sorted(cluster.image.tokens) == ["00000002", "00000003"]
    with pytest.raises(AccessLimitError):
        create(4, 0)


def test_entries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "ACLS_MAX", 2)
    cluster = cluster_with("User:ann:TOPIC:a:READ", "User:ann:TOPIC:b:READ")
    third, first = acl_of("User:bob:TOPIC:c:READ"), acl_of("User:ann:TOPIC:a:READ")
    applied = cluster.do(c.AlterAcls(added=(third,), removed=()))
    assert isinstance(applied.error, AccessLimitError)
    assert cluster.do(c.AlterAcls(added=(third,), removed=(first,))).error is None
    assert cluster.image.acl_count == 2


def test_the_format_of_access_is_a_promise() -> None:
    cluster = cluster_with("User:ann:TOPIC:orders*:READ")
    made = cluster.image.users["root"].created_index
    cluster.do(
        c.CreateToken(
            token_id="tok00001",
            user="root",
            user_index=made,
            secret_hash=b"h" * 32,
            note="for a job",
            grants=(
                Grant(
                    resource_type="TOPIC", pattern_type="LITERAL", name="t", operations=("READ",)
                ),
            ),
            expires_ms=WallMs(0),
        )
    )
    cluster.do(c.PutUser(name="ann", version=0, verifiers=("x", "y"), is_superuser=False))
    image = cluster.image
    chunks = [chunk[8:] for chunk in codec.encode_image(image)]
    lead = msgpack.unpackb(chunks[0][5:])
    assert lead[1][0][-2:] == ["required", image.access_version]
    sections = dict(msgpack.unpackb(body) for body in chunks[1:])
    ann = image.users["ann"]
    assert sections[13] == [
        ["ann", ann.created_index, ann.version, ["x", "y"], False],
        ["root", made, made, ["h"], True],
    ]
    created_ms = image.tokens["tok00001"].created_ms
    assert sections[14] == [
        [
            "tok00001",
            "root",
            made,
            b"h" * 32,
            "for a job",
            [["TOPIC", "LITERAL", "t", ["READ"]]],
            created_ms,
            0,
        ]
    ]
    assert sections[15] == [["User:ann", "TOPIC", "PREFIXED", "orders", "READ", "ALLOW", "*"]]
    assert codec.decode_image(codec.encode_image(image)) == image


def test_the_format_of_scram_credentials_is_a_promise() -> None:
    cluster = cluster_with(level=access.SCRAM_LEVEL)
    credential = ScramCredential(
        mechanism="SCRAM-SHA-256",
        iterations=4096,
        salt=b"salt",
        stored_key=b"s" * 32,
        server_key=b"v" * 32,
    )
    command = c.PutUser(
        name="ann",
        version=0,
        verifiers=(),
        is_superuser=False,
        scram=(credential,),
        decoy_key=b"d" * 32,
    )
    cluster.do(command)
    image = cluster.image
    row = ["SCRAM-SHA-256", 4096, b"salt", b"s" * 32, b"v" * 32]
    envelope = msgpack.unpackb(codec.encode_envelope(cluster.envelope(command)))
    assert envelope[6] == ["ann", 0, [], False, False, [row], b"d" * 32]
    chunks = [chunk[8:] for chunk in codec.encode_image(image)]
    assert msgpack.unpackb(chunks[0][5:])[1][0][-2:] == [image.audit_count, b"d" * 32]
    ann = image.users["ann"]
    sections = dict(msgpack.unpackb(body) for body in chunks[1:])
    assert sections[13][0] == ["ann", ann.created_index, ann.version, [], False, [row]]
    assert codec.decode_image(codec.encode_image(image)) == image


def test_a_user_without_scram_has_the_bytes_of_the_level_before() -> None:
    cluster = cluster_with(level=access.SCRAM_LEVEL)
    cluster.do(c.PutUser(name="ann", version=0, verifiers=("x",), is_superuser=False))
    image = cluster.image
    chunks = [chunk[8:] for chunk in codec.encode_image(image)]
    assert msgpack.unpackb(chunks[0][5:])[1][0][-2:] == [image.access_version, image.audit_count]
    sections = dict(msgpack.unpackb(body) for body in chunks[1:])
    assert [len(row) for row in sections[13]] == [5, 5]


@pytest.mark.parametrize(
    "changes",
    [
        {"scram_decoy_key": b""},
        {"scram_decoy_key": b"short"},
        {"feature_level": access.SCRAM_LEVEL - 1},
    ],
)
def test_an_image_with_impossible_scram_is_refused(changes: dict[str, object]) -> None:
    cluster = cluster_with(level=access.SCRAM_LEVEL)
    credential = random_scram(Random(1), ScramMechanism.SHA_256)
    command = c.PutUser(
        name="ann",
        version=0,
        verifiers=(),
        is_superuser=False,
        scram=(credential,),
        decoy_key=b"d" * 32,
    )
    assert cluster.do(command).error is None
    assert not list(access.problems(cluster.image))
    assert list(access.problems(replace(cluster.image, **changes)))


@pytest.mark.parametrize(
    "changes",
    [
        {"salt": b""},
        {"salt": bytes(access.SCRAM_SALT_BYTES_MAX + 1)},
        {"stored_key": bytes(31)},
        {"server_key": bytes(64)},
        {"mechanism": "SCRAM-SHA-512"},
        {"iterations": 0},
    ],
)
def test_scram_credentials_of_other_sizes_are_refused(changes: dict[str, Any]) -> None:
    credential = random_scram(Random(1), ScramMechanism.SHA_256)
    assert not list(access.scram_problems(credential))
    assert list(access.scram_problems(dataclasses.replace(credential, **changes)))


def test_an_image_without_access_has_the_bytes_of_the_level_before() -> None:
    before, now = Cluster(level=6).image, Cluster(level=7).image
    bytes_of = [
        b"".join(codec.encode_image(image)) for image in (before, replace(now, feature_level=6))
    ]
    assert bytes_of[0] == bytes_of[1]
