"""Who changed what, in the state: bounds, format, and secrets in no entry; the rest is in the golden scripts."""

import json
from dataclasses import fields
from random import Random

import msgpack  # type: ignore[import-untyped]  # ships no type hints
import pytest

from milena.model.access import ScramMechanism
from milena.model.errors import CorruptLogError, InvalidRequestError
from milena.model.types import WallMs
from raft_meta.machine import codec, invariants
from raft_meta.machine import commands as c
from raft_meta.machine.access import audit
from raft_meta.machine.access.access import SCRAM_LEVEL
from raft_meta.machine.apply import Applied
from raft_meta.machine.copies import replace
from tests.support.machine.access_commands import random_scram
from tests.support.machine.images import Cluster


class AuditedCluster(Cluster):
    """A cluster with an audit topic, whose changes ann asks for."""

    def __init__(self, *, level: int = audit.LEVEL) -> None:
        super().__init__([None], level=level)
        self.create(((1,),), name=audit.TOPIC)

    def asked(self, command: c.Command) -> Applied:
        return self.apply(replace(self.envelope(command), principal="User:ann"))

    def user(self, name: str, *verifiers: str) -> Applied:
        return self.asked(c.PutUser(name=name, version=0, verifiers=verifiers, is_superuser=False))


def test_the_oldest_go_when_nobody_takes_them_and_the_numbers_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = AuditedCluster()
    waiting = cluster.image.audited[1]
    monkeypatch.setattr(audit, "BYTES_MAX", 3 * audit.size_of(waiting))
    for number in range(9):
        cluster.user(f"user{number}")
    assert cluster.image.audit_count == 10
    assert max(cluster.image.audited) == 10
    assert min(cluster.image.audited) == audit.first_number(cluster.image) > 1
    assert cluster.image.audited_bytes <= audit.BYTES_MAX
    assert not invariants.violations(cluster.image)


def test_a_change_that_no_record_could_hold_is_told_by_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = AuditedCluster()
    monkeypatch.setattr(audit, "CHANGE_LENGTH_MAX", 10)
    change = cluster.user("ann").change
    assert change is not None
    assert change.change == '{"left_out_characters":77}'


def test_no_secret_is_told() -> None:
    """Fields that hold one are in no list of what is told, and their values in no entry."""
    told = {name for _, names in audit.TOLD.values() for name in names}
    assert told.isdisjoint({"verifier", "verifiers", "secret_hash", "scram", "decoy_key"})
    cluster = AuditedCluster(level=SCRAM_LEVEL)
    cluster.user("bob", "verifier-of-bob")
    bob = cluster.image.users["bob"]
    made = c.CreateToken(
        token_id="tok00001",
        user="bob",
        user_index=bob.created_index,
        secret_hash=b"secret-hash-of-thirty-two-bytes!",
        note="n",
        grants=(),
        expires_ms=WallMs(0),
    )
    assert cluster.asked(made).error is None
    first = c.InitAccess(name="root", verifier="verifier-of-root", access_mode="off")
    said = "".join(entry.change for entry in cluster.image.audited.values())
    assert "verifier-of" not in said
    assert "secret-hash" not in said
    other = Cluster(level=audit.LEVEL).do(first).change
    assert other is not None
    assert "verifier-of" not in other.change


def test_a_change_of_scram_credentials_is_told_without_them() -> None:
    cluster = AuditedCluster(level=SCRAM_LEVEL)
    cluster.user("ann")
    ann = cluster.image.users["ann"]
    credential = random_scram(Random(1), ScramMechanism.SHA_256)
    put = c.PutUser(name="ann", version=ann.version, verifiers=(), is_superuser=False)
    applied = cluster.asked(replace(put, scram=(credential,), decoy_key=b"d" * 32))
    assert applied.change is not None
    assert json.loads(applied.change.change) == {
        "is_new": False,
        "is_password_changed": False,
        "is_scram_changed": True,
        "is_superuser": False,
        "name": "ann",
    }


@pytest.mark.parametrize("level", [audit.CHILDREN_LEVEL - 1, audit.CHILDREN_LEVEL])
def test_a_deleted_token_is_told_with_those_that_go_with_it(level: int) -> None:
    cluster = AuditedCluster(level=level)
    cluster.user("bob")
    bob = cluster.image.users["bob"]
    parents = {"tok00001": "", "tok00002": "tok00001", "tok00003": "tok00002", "tok00004": ""}
    for token_id, parent in parents.items():
        made = c.CreateToken(
            token_id=token_id,
            user="bob",
            user_index=bob.created_index,
            secret_hash=token_id.encode().rjust(32),
            note="",
            grants=(),
            expires_ms=WallMs(0),
            parent=parent,
        )
        assert cluster.asked(made).error is None
    told = []
    for token_id in ("tok00001", "tok00004"):
        change = cluster.asked(c.DeleteTokens(token_ids=(token_id,))).change
        assert change is not None
        told.append(json.loads(change.change))
    assert set(cluster.image.tokens) == set()
    children = {} if level < audit.CHILDREN_LEVEL else {"child_token_ids": ["tok00002", "tok00003"]}
    assert told == [{"token_ids": ["tok00001"], **children}, {"token_ids": ["tok00004"]}]


def test_what_is_told_are_fields_of_commands() -> None:
    for kind, (_, names) in audit.TOLD.items():
        assert set(names) <= {field.name for field in fields(kind)}
    assert len({action for action, _ in audit.TOLD.values()}) == len(audit.TOLD)


def test_below_the_level_a_change_is_told_and_not_counted() -> None:
    cluster = AuditedCluster(level=7)
    applied = cluster.do(c.PutUser(name="ann", version=0, verifiers=(), is_superuser=False))
    assert applied.change is not None
    assert applied.change.number == 0
    assert not cluster.image.audited
    assert not cluster.image.audit_count


def test_a_retry_is_told_of_once() -> None:
    cluster = AuditedCluster()
    envelope = cluster.envelope(c.PutUser(name="ann", version=0, verifiers=(), is_superuser=False))
    assert cluster.apply(envelope).change is not None
    assert cluster.apply(envelope).change is None


def test_the_format_is_a_promise() -> None:
    cluster = AuditedCluster()
    cluster.user("ann")
    image = cluster.image
    chunks = [chunk[8:] for chunk in codec.encode_image(image)]
    lead = msgpack.unpackb(codec.encode_image(image).__next__()[13:])
    assert lead[1][0][-3:] == ["off", image.access_version, 2]
    sections = dict(msgpack.unpackb(body) for body in chunks[1:])
    entry = image.audited[2]
    assert sections[17][1] == [2, image.index, 1000, "User:ann", 9, "put_user", entry.change]
    assert codec.decode_image(codec.encode_image(image)) == image


def test_an_envelope_names_who_asked_only_where_somebody_was() -> None:
    cluster = AuditedCluster()
    forget = cluster.envelope(c.ForgetAudited(through=3))
    row = msgpack.unpackb(codec.encode_envelope(forget))
    assert row[5:] == [36, [3]]
    asked = replace(forget, principal="User:ann")
    assert msgpack.unpackb(codec.encode_envelope(asked)) == [*row, "User:ann"]
    assert codec.decode_envelope(codec.encode_envelope(asked)) == asked
    with pytest.raises(CorruptLogError, match="not text"):
        codec.decode_envelope(msgpack.packb([*row, 5]))
    with pytest.raises(CorruptLogError):
        codec.decode_envelope(msgpack.packb([*row, "User:ann", 5]))


def test_entries_that_do_not_fit_an_image_are_found() -> None:
    cluster = AuditedCluster()
    cluster.user("ann")
    image = cluster.image
    assert not invariants.violations(image)
    entry = image.audited[2]
    for broken in (
        replace(image, audited=image.audited.delete(2)),
        replace(image, audited=image.audited.delete(1)),
        replace(image, audit_count=1),
        replace(image, audited_bytes=0),
        replace(image, audited=image.audited.set(2, replace(entry, number=1))),
        replace(image, audited=image.audited.set(2, replace(entry, index=image.index + 1))),
        replace(image, feature_level=7),
        replace(image, topic_ids=image.topic_ids.delete(audit.TOPIC)),
    ):
        assert invariants.violations(broken)


def test_an_action_that_changes_no_image_is_told_with_its_principal() -> None:
    cluster = Cluster(level=11)
    command = c.NoteAction(action="delete_records", change='{"topic":"t"}')
    envelope = replace(cluster.envelope(command), principal="User:ann")
    change = cluster.apply(envelope).change
    assert change is not None
    assert (change.principal, change.action, change.change) == (
        "User:ann",
        "delete_records",
        '{"topic":"t"}',
    )
    assert change.number == cluster.image.audit_count


@pytest.mark.parametrize(
    ("action", "change"),
    [
        ("", "{}"),
        ("Two words", "{}"),
        ("a", "[]"),
        ("a", "no json"),
        ("a", '{"x":"' + "y" * 70_000 + '"}'),
    ],
)
def test_a_note_that_cannot_be_told_is_refused(action: str, change: str) -> None:
    cluster = Cluster(level=11)
    before = cluster.image.audit_count
    applied = cluster.do(c.NoteAction(action=action, change=change))
    assert isinstance(applied.error, InvalidRequestError)
    assert cluster.image.audit_count == before


@pytest.mark.parametrize(
    ("change", "left_out"),
    [
        ({"topic": "t", "partitions": None, "to": 0}, []),
        ({"topic": "t" * 65_536, "partitions": [1], "to": "earliest"}, ["topic"]),
        ({"topic": "\x01" * 32_767, "partition": 1, "before_offset": None}, ["topic"]),
        ({"group_id": "g", "topic": "t", "partitions": [2**63 - 1] * 10_000}, ["partitions"]),
        ({"topic": "t" * 65_536, "partitions": [2**63 - 1] * 10_000}, ["topic", "partitions"]),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
def test_the_longest_fields_of_a_note_are_told_by_their_lengths(
    change: dict[str, object], left_out: list[str]
) -> None:
    cluster = Cluster(level=11)
    command = c.NoteAction(action="a", change=audit.note_text(change))
    assert cluster.do(command).error is None
    told = json.loads(command.change)
    assert [name for name in change if told[name] != change[name]] == left_out
    for name in left_out:
        length = len(json.dumps(change[name], separators=(",", ":")))
        assert told[name] == {"left_out_characters": length}
