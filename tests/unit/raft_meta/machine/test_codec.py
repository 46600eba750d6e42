"""Bytes of commands, responses and images: canonical, versioned, and nothing accepted that is not whole."""

import base64
import hashlib
from dataclasses import replace

import crc32c
import msgpack
import pytest
from immutables import Map

import milena.errors
from milena.model.errors import (
    CorruptLogError,
    FeatureLevelError,
    GroupNotEmptyError,
    InvalidRequestError,
    MilenaError,
    NotLeaderError,
    StaleVersionError,
    TopicExistsError,
)
from milena.model.types import WallMs
from raft_meta.machine import codec
from raft_meta.machine import commands as c
from raft_meta.machine.apply import apply
from raft_meta.machine.image import Image, Proposer
from raft_meta.machine.topics import elections
from tests.support.machine.group_scripts import member
from tests.support.machine.images import (
    TOPIC_ID,
    Cluster,
    GroupCluster,
    TransactionCluster,
    aborted,
    commit_of,
    committed,
    consumer_of,
    extent_of,
)

ENVELOPE = c.Envelope(
    proposer=1,
    incarnation=2,
    sequence=3,
    now_ms=WallMs(4),
    command=c.CheckImage(index=5, image_hash=b"six"),
)


def test_every_command_has_one_tag_and_a_level() -> None:
    assert len(set(codec.TAGS.values())) == len(codec.TAGS) == len(codec.LEVELS)


def test_an_envelope_is_a_row_of_plain_values() -> None:
    """The format is a promise: a node of another release reads these bytes."""
    encoded = codec.encode_envelope(ENVELOPE)
    assert msgpack.unpackb(encoded) == [1, 1, 2, 3, 4, 15, [5, b"six"]]
    assert codec.decode_envelope(encoded) == ENVELOPE


@pytest.mark.parametrize(
    "row",
    [
        [2, 1, 2, 3, 4, 15, [5, b"six"]],
        [1, 1, 2, 3, 4, 15],
        [1, 1, 2, 3, 4, 15, [5]],
        [1, 1, 2, 3, 4, 15, [5, b"six", 7]],
        [1, 1, 2, 3, 4, 15, [5, "six"]],
        [1, 1, 2, 3, 4, 15, [True, b"six"]],
        [1, 1, 2, 3, 4, 15, [1 << 63, b"six"]],
        [1, 1, 2, 3, 1.5, 15, [5, b"six"]],
        [1, 1, 2, 3, 4, 15, {"index": 5}],
        [],
        {},
    ],
)
def test_an_envelope_of_another_shape_is_corrupt(row: object) -> None:
    with pytest.raises(CorruptLogError):
        codec.decode_envelope(msgpack.packb(row))


def test_an_unknown_command_names_the_remedy() -> None:
    with pytest.raises(CorruptLogError, match=r"99 is unknown .* Upgrade"):
        codec.decode_envelope(msgpack.packb([1, 1, 2, 3, 4, 99, []]))


@pytest.mark.parametrize("value", [None, 7, "word", (), (1, 2), ("a", ""), (True, False)])
def test_responses_cross_the_codec(value: None) -> None:
    assert codec.decode_response(codec.encode_response(value)) == value


@pytest.mark.parametrize("kind", [TopicExistsError, StaleVersionError, NotLeaderError])
def test_a_refusal_comes_back_as_its_class(kind: type[MilenaError]) -> None:
    with pytest.raises(kind, match="the reason"):
        codec.decode_response(codec.encode_error(kind("the reason")))


def test_a_refusal_of_a_newer_release_is_still_an_error() -> None:
    with pytest.raises(MilenaError, match="why"):
        codec.decode_response(msgpack.packb([1, "unheard_of", "why"]))


@pytest.mark.parametrize("row", [[2, 1], [1], [1, 1.5], [1, [1, "a"]], [1, 2, 3], 5, [1, {}]])
def test_a_response_of_another_shape_is_corrupt(row: object) -> None:
    with pytest.raises(CorruptLogError):
        codec.decode_response(msgpack.packb(row))


def test_equal_images_are_equal_bytes_whatever_their_history() -> None:
    one, other = Cluster([None, None]), Cluster([None, None])
    forward = {key: Proposer(incarnation=1, floor=0, window=Map({1: b"x"})) for key in range(40)}
    backward = dict(reversed(forward.items()))
    first = one.image.__class__(proposers=Map(forward))
    second = other.image.__class__(proposers=Map(backward))
    assert list(codec.encode_image(first)) == list(codec.encode_image(second))
    assert codec.image_hash(first) == codec.image_hash(second)


def test_the_hash_tells_images_apart() -> None:
    cluster = Cluster([None])
    before = codec.image_hash(cluster.image)
    cluster.create(((1,),))
    assert codec.image_hash(cluster.image) != before


def test_chunks_are_bounded() -> None:
    cluster = Cluster([None])
    cluster.create(((1,),) * 10_000)
    chunks = list(codec.encode_image(cluster.image))
    assert len(chunks) > 4
    assert max(map(len, chunks)) < codec.CHUNK_BYTES + 1024
    assert codec.decode_image(chunks) == cluster.image


def frames(image: Image) -> list[bytes]:
    return list(codec.encode_image(image))


def test_an_empty_snapshot_is_refused() -> None:
    for chunks in ([], [b""], [b"MLNI"], [b"MLNI\x02" + bytes(40)]):
        with pytest.raises(CorruptLogError):
            codec.decode_image(chunks)


def test_frames_in_another_order_or_from_another_snapshot_are_refused() -> None:
    one, other = Cluster([None]), Cluster([None, None])
    whole, foreign = frames(one.image), frames(other.image)
    for chunks in (
        [*whole[:1], *whole[2:]],
        [*whole[:1], *whole[1:3][::-1], *whole[3:]],
        [*whole[:2], *foreign[2:]],
        [*whole, *whole],
    ):
        with pytest.raises(CorruptLogError):
            codec.decode_image(chunks)


def test_a_huge_frame_is_refused_before_it_is_read() -> None:
    with pytest.raises(CorruptLogError, match="frame of"):
        codec.decode_image([b"MLNI\x01" + b"\xff" * 8])


def resealed(image: Image, change: tuple[bytes, bytes]) -> bytes:
    """A snapshot with something replaced and every checksum right again."""
    whole = b"".join(codec.encode_image(image))
    position, out = 5, bytearray(whole[:5])
    digest = hashlib.blake2b(whole[:5], digest_size=codec.HASH_BYTES)
    while position < len(whole):
        length = int.from_bytes(whole[position : position + 4])
        body = whole[position + 8 : position + 8 + length].replace(*change)
        position += 8 + length
        if position == len(whole):
            body = msgpack.packb([7, [digest.digest()]])
        frame = len(body).to_bytes(4) + crc32c.crc32c(body).to_bytes(4) + body
        digest.update(frame)
        out += frame
    return bytes(out)


def test_a_well_sealed_snapshot_that_contradicts_itself_is_refused() -> None:
    cluster = Cluster([None])
    cluster.create(((1,),), name="orders")
    same = resealed(cluster.image, (b"", b""))
    assert codec.decode_image([same]) == cluster.image
    with pytest.raises(CorruptLogError, match="contradicts itself"):
        codec.decode_image([resealed(cluster.image, (b"\xc0\xc2\xc2\x01", b"\xc0\xc3\xc2\x01"))])


def test_a_snapshot_of_a_higher_feature_level_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chunks = frames(Cluster().image)
    monkeypatch.setattr(codec, "FEATURE_LEVEL_MAX", 0)
    with pytest.raises(CorruptLogError, match="Upgrade"):
        codec.decode_image(chunks)


SNAPSHOT_OF_THE_FIRST_LEVEL = base64.b64decode(
    "TUxOSQEAAAAYT+bLuZIAkZgLzQPop2NsdXN0ZXKTAQIDAQEBAgAAAI8JPvK0kgGTnQEDomQxAbRodHRwOi8vYnJva2Vy"
    "LTE6ODA4Mqhicm9rZXItMc0bqqFhwsIBAQOdAgWiZDIBtGh0dHA6Ly9icm9rZXItMjo4MDgyqGJyb2tlci0yzRuqwMLC"
    "AQEFnQMHomQzAbRodHRwOi8vYnJva2VyLTM6ODA4Mqhicm9rZXItM80bqqFiw8IBAQcAAABBzG9IVJICkZbZIDAwMDAw"
    "MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAxoXQCA5GSrHJldGVudGlvbi5tc6QxMDAwzQPoAAAAa0m6SdSSA5KT2SAw"
    "MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMQCZkwECA5MBAgMBAACQkJD/k9kgMDAwMDAwMDAwMDAwMDAwMDAw"
    "MDAwMDAwMDAwMDAwMDEBmZMCAwGTAgMBAgAAkJCQ/wAAAAiqd4V2kgSRkwEAoXAAAAAH0Q2FFZIFkZMJAQAAAACF1/Hk"
    "vZIGm5MJAcQKkgGnY2x1c3RlcpMJAsQDkgEBkwkDxAOSAQOTCQTEA5IBwJMJBcQDkgEFkwkGxAOSAcCTCQfEA5IBB5MJ"
    "CMQDkgHAkwkJxCSSAdkgMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDGTCQrEBZIBkgEAkwkLxAOSAZAAAAAV"
    "xqXYb5IHkcQQt8UzIxsYu2McqzcAxmGqIg=="
)
"""Three brokers, one of them fenced, a topic of two partitions and a producer, as the first release wrote them."""


def test_a_snapshot_of_the_first_release_is_read_and_written_the_same() -> None:
    image = codec.decode_image([SNAPSHOT_OF_THE_FIRST_LEVEL])
    assert image.partitions[TOPIC_ID, 0].moving is None
    assert b"".join(codec.encode_image(image)) == SNAPSHOT_OF_THE_FIRST_LEVEL


SNAPSHOT_OF_THE_SECOND_LEVEL = base64.b64decode(
    "TUxOSQEAAAAYqQ+Es5IAkZgMzQPop2NsdXN0ZXKTAQIDAgEBAgAAAI79bjbukgGTnQEDomQxAbRodHRwOi8vYnJva2VyLTE6"
    "ODA4Mqhicm9rZXItMc0bqsDCwgECA50CBaJkMgG0aHR0cDovL2Jyb2tlci0yOjgwODKoYnJva2VyLTLNG6rAwsIBAgWdAwei"
    "ZDMBtGh0dHA6Ly9icm9rZXItMzo4MDgyqGJyb2tlci0zzRuqoXLCwgECBwAAAEZ9bZuTkgKRltkgMDAwMDAwMDAwMDAwMDAw"
    "MDAwMDAwMDAwMDAwMDAwMDGhdAIDkZKuY2xlYW51cC5wb2xpY3mnY29tcGFjdM0D6AAAAHaGfQPekgOSk9kgMDAwMDAwMDAw"
    "MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDEAmpMBAgOTAQIDAQABkJCQ/5WSAwKTAQIDwgEHk9kgMDAwMDAwMDAwMDAwMDAwMDAw"
    "MDAwMDAwMDAwMDAwMDEBmZMCAwGTAgMBAgAAkJCQ/wAAAAiqd4V2kgSRkwEAoXAAAAAH0Q2FFZIFkZMJAQAAAADVEk9tAJIG"
    "nJMJAcQKkgGnY2x1c3RlcpMJAsQDkgEBkwkDxAOSAQOTCQTEA5IBwJMJBcQDkgEFkwkGxAOSAcCTCQfEA5IBB5MJCMQDkgHA"
    "kwkJxCSSAdkgMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDGTCQrEBZIBkgEAkwkLxASSAZGgkwkMxEqTAa1mZWF0"
    "dXJlX2xldmVs2ThUaGUgZmVhdHVyZSBsZXZlbCBpcyAyIGFuZCBuZXZlciBmYWxsczsgMSB3YXMgYXNrZWQgZm9yLgAAABWy"
    "Nm2PkgeRxBCv76XH5/Vq/eNbukrRnzXY"
)
"""Three brokers, a compacted topic of which one partition is to move, and a producer, as the release before groups
wrote them."""


def test_a_snapshot_without_groups_is_written_as_the_release_before_does() -> None:
    image = codec.decode_image([SNAPSHOT_OF_THE_SECOND_LEVEL])
    assert image.feature_level == 2
    assert image.partitions[TOPIC_ID, 0].moving is not None
    assert b"".join(codec.encode_image(image)) == SNAPSHOT_OF_THE_SECOND_LEVEL


SNAPSHOT_OF_THE_THIRD_LEVEL = base64.b64decode(
    "TUxOSQEAAAAYCZ0yhZIAkZgOzQPop2NsdXN0ZXKTAQIDAwEBAQAAAI2eQxE5kgGTnQEDomQxAbRodHRwOi8vYnJva2VyLTE6"
    "ODA4Mqhicm9rZXItMc0bqsDCwgEDA50CBaJkMgG0aHR0cDovL2Jyb2tlci0yOjgwODKoYnJva2VyLTLNG6rAwsIBAwWdAwei"
    "ZDMBtGh0dHA6Ly9icm9rZXItMzo4MDgyqGJyb2tlci0zzRuqwMLCAQMHAAAALmODRBKSApGW2SAwMDAwMDAwMDAwMDAwMDAw"
    "MDAwMDAwMDAwMDAwMDAwMaF0BAOQzQPoAAAA04Y9huySA5ST2SAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMQCZ"
    "kwECA5MBAgMBAACQkJD/k9kgMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDEBmZMBAgOTAQIDAQAAkJCQ/5PZIDAw"
    "MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAxApmTAQIDkwECAwEAAJCQkP+T2SAwMDAwMDAwMDAwMDAwMDAwMDAwMDAw"
    "MDAwMDAwMDAwMQOZkwECA5MBAgMBAACQkJD/AAAAB9ENhRWSBZGTCQEAAAAAnAAf3s2SBp6TCQHECpIBp2NsdXN0ZXKTCQLE"
    "A5IBAZMJA8QDkgEDkwkExAOSAcCTCQXEA5IBBZMJBsQDkgHAkwkHxAOSAQeTCQjEA5IBwJMJCcQkkgHZIDAwMDAwMDAwMDAw"
    "MDAwMDAwMDAwMDAwMDAwMDAwMDAxkwkKxAOSAQqTCQvEA5IBC5MJDMQEkgGRoJMJDcQDkgENkwkOxAOSAZAAAAAdHag4IpII"
    "kpWhZwoBpnN0aWNreQCVoWgLAaZzdGlja3kAAAAA08c8OimSCZOSoWedoWHAwqZjbGllbnSoMTAuMC4wLjGRoXTApnN0aWNr"
    "ec2vyM3qYAGRktkgMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDGSAAGRktkgMDAwMDAwMDAwMDAwMDAwMDAwMDAw"
    "MDAwMDAwMDAwMDGSAAGSoWedoWLAwqZjbGllbnSoMTAuMC4wLjGRoXTApnN0aWNrec2vyM3qYAGQkJKhaJ2hYcDCpmNsaWVu"
    "dKgxMC4wLjAuMZGhdMCmc3RpY2t5za/IzepgAZCQAAAAXawJhnKSCpKUoWfZIDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAw"
    "MDAwMDAxAJQF/6DNA+iUoWfZIDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAxAZQG/6DNA+gAAABECeDIkJILkZuh"
    "Z6FpDaZiaW5hcnmmbGF0ZXN0w//NA+iQwJGS2SAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMZECAAAAFTzsQ8eS"
    "B5HEEJOmyHspOlE8/fgpvUKYxGU="
)
"""Three brokers, a topic that they lead, a group, what it has committed and a consumer, as the release before damaged
copies are given up wrote them."""


def test_a_snapshot_of_the_third_level_stays_as_it_is() -> None:
    image = codec.decode_image([SNAPSHOT_OF_THE_THIRD_LEVEL])
    assert image.feature_level == 3
    assert b"".join(codec.encode_image(image)) == SNAPSHOT_OF_THE_THIRD_LEVEL


def test_a_copy_given_up_too_early_is_refused_and_its_partition_stays_as_it_was() -> None:
    image = codec.decode_image([SNAPSHOT_OF_THE_THIRD_LEVEL])
    key = (TOPIC_ID, 0)
    plan = elections.plan_give_up(image, 2, key)
    assert plan is not None
    epoch = image.brokers[2].broker_epoch
    command = c.GiveUpReplicas(broker_id=2, broker_epoch=epoch, changes=(plan,))
    applied = apply(image, image.index + 1, replace(ENVELOPE, command=command))
    assert isinstance(applied.error, FeatureLevelError)
    assert applied.image.partitions is image.partitions
    raised = replace(image, feature_level=4)
    applied = apply(raised, image.index + 1, replace(ENVELOPE, command=command))
    assert applied.image.partitions[key].isr == (1, 3)


SNAPSHOT_OF_THE_FIFTH_LEVEL = base64.b64decode(
    "TUxOSQEAAAAYdSdIx5IAkZgNzQPop2NsdXN0ZXKTAQIDBQEBAwAAAI0ZGnqrkgGTnQEDomQxAbRodHRwOi8vYnJva2VyLTE6ODA4"
    "Mqhicm9rZXItMc0bqsDCwgEFA50CBaJkMgG0aHR0cDovL2Jyb2tlci0yOjgwODKoYnJva2VyLTLNG6rAwsIBBQWdAweiZDMBtGh0"
    "dHA6Ly9icm9rZXItMzo4MDgyqGJyb2tlci0zzRuqwMLCAQUHAAAALgr606aSApGW2SAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAw"
    "MDAwMDAwMaF0AgOQzQPoAAAAa2HXhVuSA5KT2SAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMQCZkwECA5MBAgMBAACQ"
    "kJD/k9kgMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDEBmZMBAgOTAQIDAQAAkJCQ/wAAAA4uTPCakgSSkwEBo2FwcJMC"
    "AMAAAAAH0Q2FFZIFkZMJAQAAAACaBHa8D5IGnZMJAcQKkgGnY2x1c3RlcpMJAsQDkgEBkwkDxAOSAQOTCQTEA5IBwJMJBcQDkgEF"
    "kwkGxAOSAcCTCQfEA5IBB5MJCMQDkgHAkwkJxCSSAdkgMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDGTCQrEBZIBkgEA"
    "kwkLxAWSAZICAJMJDMQFkgGSAQGTCQ3EBJIBkaAAAAAMcESgjpIIkZWhZw0AoM0D6AAAADDg2WflkgqRlKFn2SAwMDAwMDAwMDAw"
    "MDAwMDAwMDAwMDAwMDAwMDAwMDAwMQCUBf+gzQPoAAAAFZzM0OuSB5HEEDwc0D0avVc7Czrasf7XJtE="
)
"""Three brokers, a topic that they lead, two producers, one of which came back, and what a group has committed, as the
release before transactions wrote them."""


def test_a_snapshot_of_the_fifth_level_stays_as_it_is_until_a_transaction_ends() -> None:
    image = codec.decode_image([SNAPSHOT_OF_THE_FIFTH_LEVEL])
    assert image.feature_level == 5
    assert image.producers[1].last == ""
    assert b"".join(codec.encode_image(image)) == SNAPSHOT_OF_THE_FIFTH_LEVEL
    command = c.EndTransactions(ends=(aborted((1, 1)),))
    applied = apply(image, image.index + 1, replace(ENVELOPE, command=command))
    assert isinstance(applied.error, FeatureLevelError)
    assert applied.image.producers is image.producers
    raised = replace(image, feature_level=6)
    applied = apply(raised, image.index + 1, replace(ENVELOPE, command=command))
    assert applied.image.producers[1].last == "aborted"


def test_the_format_of_transactions_is_a_promise() -> None:
    cluster = TransactionCluster()
    one, other = cluster.begin("app"), cluster.begin()
    cluster.end(
        committed(other, {2: 7}), committed(one, {1: 6, 2: 9}, is_keyed=True), aborted((1, 1))
    )
    cluster.begin()
    chunks = [chunk[8:] for chunk in codec.encode_image(cluster.image)]
    sections = dict(msgpack.unpackb(body) for body in chunks[1:])
    assert sections[4] == [[1, 2, "app", "aborted"], [2, 1, None, "committed"], [3, 0, None]]
    wrote = [[TOPIC_ID, 1, -1, 6], [TOPIC_ID, 2, -1, 9]]
    assert sections[12] == [
        [TOPIC_ID, 1, 1, 0, [6, wrote]],
        [TOPIC_ID, 2, 1, 0, [9, []]],
        [TOPIC_ID, 2, 2, 0, [7, []]],
    ]
    assert codec.decode_image(codec.encode_image(cluster.image)) == cluster.image


def test_endings_have_one_order_whatever_order_they_came_in() -> None:
    """Producers by number, then epochs, and topics before partitions: no map's own order."""
    images = []
    for order in (1, -1):
        cluster = TransactionCluster()
        cluster.create(((1,),) * 12, name="u", topic_id="2" * 32)
        begun = [cluster.begin() for _ in range(12)]
        for transaction in begun[::order]:
            end = committed(transaction, {3: 1, 0: 1})
            wide = tuple(replace(extent_of(p, 1), topic_id="2" * 32) for p in (11, 2))
            cluster.end(replace(end, extents=(*wide, *end.extents)[::order]))
        images.append(replace(cluster.image, proposers=Map()))
    first, second = images
    assert b"".join(codec.encode_image(first)) == b"".join(codec.encode_image(second))
    section, rows = msgpack.unpackb(frames(first)[-2][8:])
    keys = [row[:4] for row in rows]
    assert section == 12
    assert keys == sorted(keys)
    assert len(keys) == 48


def test_transactions_in_a_snapshot_that_is_well_sealed_and_wrong() -> None:
    cluster = TransactionCluster()
    one, other = cluster.begin("app"), cluster.begin()
    cluster.end(committed(one, {1: 6, 2: 9}, is_keyed=True), committed(other, {2: 7}))
    image = cluster.image
    assert codec.decode_image([resealed(image, (b"", b""))]) == image
    for change, says in (
        # The second ending of the partition comes before the first, or is in one that is not there.
        ((b"\x02\x02\x00\x92\x07", b"\x02\x00\x00\x92\x07"), "out of order"),
        ((b"\x02\x02\x00\x92\x07", b"\x09\x02\x00\x92\x07"), "which is not there"),
        # An epoch that is still open, an end before the beginning, a home that is elsewhere.
        ((b"\x02\x02\x00\x92\x07", b"\x02\x02\x01\x92\x07"), "still at epoch 1"),
        ((b"\x02\x02\x00\x92\x07", b"\x02\x02\x00\x92\x00"), "wrote nothing"),
        ((b"1\x01\xff\x06", b"1\x00\xff\x06"), "wrote elsewhere alone"),
        # Another number in the place of one, and a word that is none.
        ((b"\x02\x02\x00\x92\x07", b"\x02\x02\x00\x92\xc0"), "64-bit integer"),
        ((b"\xa9committed", b"\xa9commttied"), "no epoch that ended so"),
    ):
        with pytest.raises(CorruptLogError, match=says):
            codec.decode_image([resealed(image, change)])


def test_commands_of_transactions_are_a_promise() -> None:
    commit = committed((3, 4), {1: 9}, commit_of("g", {0: 5}), is_keyed=True)
    marker = c.FinishedMarker(topic_id=TOPIC_ID, partition=1, producer_id=3, producer_epoch=4)
    commands: list[c.Command] = [
        c.EndTransactions(ends=(commit, aborted((3, 5)))),
        c.FinishMarkers(markers=(marker,)),
    ]
    offsets = [["g", None, -1, [[TOPIC_ID, 0, 5, -1, ""]]]]
    ends = [
        [3, 4, True, True, [[TOPIC_ID, 1, -1, 9]], offsets],
        [3, 5, False, False, [], []],
    ]
    wanted = [[26, [ends]], [27, [[[TOPIC_ID, 1, 3, 4]]]]]
    for command, row in zip(commands, wanted, strict=True):
        encoded = codec.encode_envelope(replace(ENVELOPE, command=command))
        assert msgpack.unpackb(encoded)[5:] == row
        assert codec.decode_envelope(encoded).command == command


def with_groups() -> GroupCluster:
    cluster = GroupCluster()
    held = ((TOPIC_ID, (0, 1)),)
    cluster.alter("g", 1, [member("a", 1, held, held), member("b", 1)])
    cluster.alter("h", 1, [member("a", 1)])
    cluster.commit(commit_of("g", {0: 5, 1: 6}, member_id="a", member_epoch=1))
    cluster.put(replace(consumer_of("g", "i"), assigned=((TOPIC_ID, (2,)),)))
    return cluster


def test_the_format_of_groups_is_a_promise() -> None:
    """Nodes of other releases read these rows: fields are added at the end, and never change meaning."""
    chunks = [chunk[8:] for chunk in codec.encode_image(with_groups().image)]
    sections = dict(msgpack.unpackb(body) for body in chunks[1:])
    assert sections[8] == [["g", 10, 1, "sticky", 0], ["h", 11, 1, "sticky", 0]]
    assert sections[9][0] == [
        "g",
        ["a", None, False, "client", "10.0.0.1", ["t"], None, "sticky", 45000, 60000, 1]
        + [[[TOPIC_ID, [0, 1]]]] * 2,
    ]
    assert [row[1][0] for row in sections[9]] == ["a", "b", "a"]
    assert sections[10] == [
        ["g", TOPIC_ID, 0, [5, -1, "", 1000]],
        ["g", TOPIC_ID, 1, [6, -1, "", 1000]],
    ]
    assert sections[11] == [
        ["g", "i", 13, "binary", "latest", True, -1, 1000, [], None, [[TOPIC_ID, [2]]]]
    ]


def test_commands_of_groups_are_a_promise() -> None:
    commands = [
        c.AlterGroup(
            broker_id=1,
            broker_epoch=2,
            group_id="g",
            version=3,
            generation=4,
            assignor="range",
            members=(member("a", 4, (), ((TOPIC_ID, (0,)),)),),
            left=("b",),
        ),
        c.CommitOffsets(broker_id=1, broker_epoch=2, commits=(commit_of("g", {0: 5}),)),
        c.ExpireOffsets(
            broker_id=1, broker_epoch=2, groups=(c.GroupExpiry(group_id="g", before_ms=WallMs(3)),)
        ),
        c.DeleteGroup(broker_id=1, broker_epoch=2, group_id="g"),
        c.PutConsumer(broker_id=1, broker_epoch=2, is_new=True, consumer=consumer_of("g", "i")),
        c.DeleteConsumers(
            broker_id=1,
            broker_epoch=2,
            consumers=(c.ConsumerName(group_id="g", instance="i", created_index=3),),
        ),
    ]
    row = ["a", None, False, "client", "10.0.0.1", ["t"], None, "sticky", 45000, 60000, 4, []]
    wanted = [
        [19, [1, 2, "g", 3, 4, "range", [[*row, [[TOPIC_ID, [0]]]]], ["b"]]],
        [20, [1, 2, [["g", None, -1, [[TOPIC_ID, 0, 5, -1, ""]]]]]],
        [21, [1, 2, [["g", 3]]]],
        [22, [1, 2, "g"]],
        [23, [1, 2, True, ["g", "i", 0, "binary", "latest", True, -1, 1000, [], None, []]]],
        [24, [1, 2, [["g", "i", 3]]]],
    ]
    for command, row in zip(commands, wanted, strict=True):
        encoded = codec.encode_envelope(replace(ENVELOPE, command=command))
        assert msgpack.unpackb(encoded)[5:] == row
        assert codec.decode_envelope(encoded).command == command


def test_an_error_is_of_the_class_that_commands_raise() -> None:
    """The client has classes of its own with the same codes, in the same process."""
    assert milena.errors.GroupNotEmptyError.code == GroupNotEmptyError.code
    for kind in (GroupNotEmptyError, TopicExistsError):
        with pytest.raises(MilenaError) as caught:
            codec.decode_response(codec.encode_error(kind("no")))
        assert type(caught.value) is kind


@pytest.mark.parametrize(
    "change",
    [{"offset": 2**63}, {"offset": 2**64}, {"leader_epoch": 2**64 - 1}, {"metadata": "\ud800"}],
)
def test_what_nobody_could_read_is_never_written(change: dict[str, object]) -> None:
    """Such a command in the log would stop every node at every start."""
    commit = commit_of("g", {0: 1})
    commit = replace(commit, offsets=(replace(commit.offsets[0], **change),))
    command = c.CommitOffsets(broker_id=1, broker_epoch=2, commits=(commit,))
    with pytest.raises(InvalidRequestError, match="cannot be written down"):
        codec.encode_envelope(replace(ENVELOPE, command=command))


def test_greek_letters_are_no_large_integers() -> None:
    commit = commit_of("\u03c0\u03c1", {0: 2**63 - 1})
    command = c.CommitOffsets(broker_id=1, broker_epoch=2, commits=(commit,))
    encoded = codec.encode_envelope(replace(ENVELOPE, command=command))
    assert codec.decode_envelope(encoded).command == command


def test_groups_in_a_snapshot_that_is_well_sealed_and_wrong() -> None:
    image = with_groups().image
    whole = resealed(image, (b"", b""))
    assert codec.decode_image([whole]) == image
    for change, says in (
        # The second member of g becomes one of a group that is not there, or comes before the first.
        ((b"\x92\xa1g\x9d\xa1b", b"\x92\xa1f\x9d\xa1b"), "member of group f"),
        ((b"\x92\xa1g\x9d\xa1b", b"\x92\xa1g\x9d\xa1A"), "out of order"),
        # An offset of a group, or in a partition, that is not there.
        ((b"\x94\xa1g\xd9 ", b"\x94\xa1f\xd9 "), "offsets of group f"),
        ((b"1\x01\x94\x06", b"1\x09\x94\x06"), "has an offset in"),
        # A group from the future, a member beyond its group's generation, a consumer that has everything at once.
        ((b"\xa1g\x0a\x01", b"\xa1g\x7f\x01"), "version from the future"),
        ((b"\xa1h\x0b\x01", b"\xa1h\x0b\x00"), "epoch 1 is outside 1..0"),
        ((b"\x90\xc0\x91\x92", b"\x91\xa1t\xc0\x91\x92"), "more than one of topics"),
        ((b"\xa1i\x0d", b"\xa1i\x7f"), "comes from the future"),
    ):
        with pytest.raises(CorruptLogError, match=says):
            codec.decode_image([resealed(image, change)])
