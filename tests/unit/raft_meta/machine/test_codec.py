"""Bytes of commands, responses and images: canonical, versioned, and nothing accepted that is not whole."""

import hashlib

import crc32c
import msgpack
import pytest
from immutables import Map

from raft_meta.machine import codec
from raft_meta.machine import commands as c
from raft_meta.machine.image import Image, Proposer
from storage.errors import (
    CorruptLogError,
    MilenaError,
    NotLeaderError,
    StaleVersionError,
    TopicExistsError,
)
from storage.types import WallMs
from tests.support.machine_images import Cluster

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
