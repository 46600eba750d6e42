"""Decoders of commands, answers and the image."""

import crc32c
import msgpack

from milena.model.errors import (
    MilenaError,
    StartupError,
)
from raft_meta.machine import codec
from raft_meta.machine.image import Image
from tests.fuzz.targets.target import CORRUPT, Target
from tests.support.machine.commands import (
    random_group_history,
    random_history,
    random_transaction_history,
)


def _command(data: bytes) -> object:
    envelope = codec.decode_envelope(data)
    assert codec.decode_envelope(codec.encode_envelope(envelope)) == envelope
    return envelope


def _command_seeds() -> list[bytes]:
    found: dict[str, bytes] = {}
    for seed in range(8):
        log = random_history(seed, 120)[0] + random_group_history(seed, 60)[0]
        for command in log + random_transaction_history(seed, 40)[0]:
            found.setdefault(type(codec.decode_envelope(command).command).__name__, command)
    return list(found.values())


def _image(data: bytes) -> object:
    image = codec.decode_image([data[:100], data[100:]])
    # Not the very bytes: MessagePack has several forms of a number, of which a node writes the shortest.
    assert codec.decode_image(codec.encode_image(image)) == image
    return image


def _images_of_transactions(seed: int) -> list[Image]:
    return [applied.image for applied in random_transaction_history(seed, 80)[1]]


def _image_seeds() -> list[bytes]:
    images = [random_history(seed, 30)[1][-1].image for seed in range(3)]
    images += [random_group_history(seed, 60)[1][-1].image for seed in range(2)]
    for seed in range(2):
        images.append(max(_images_of_transactions(seed), key=lambda image: image.ending_count))
    return [b"".join(codec.encode_image(image)) for image in images]


def _reseal_image(data: bytes) -> bytes:
    """The checksum of each frame and the digest of all; the last frame holds it."""
    lead, frames = data[:5], []
    at = 5
    while at + 8 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if end > len(data):
            break
        body = data[at + 8 : end]
        frames.append(len(body).to_bytes(4, "big") + crc32c.crc32c(body).to_bytes(4, "big") + body)
        at = end
    digest = codec.hashlib.blake2b(lead + b"".join(frames[:-1]), digest_size=codec.HASH_BYTES)
    body = msgpack.packb([7, [digest.digest()]])
    last = len(body).to_bytes(4, "big") + crc32c.crc32c(body).to_bytes(4, "big") + body
    return lead + b"".join([*frames[:-1], last]) + data[at:]


def _response(data: bytes) -> object:
    return codec.decode_response(data)


def _response_seeds() -> list[bytes]:
    return [codec.encode_response(value) for value in (None, 5, "id", (1, 2), ("a", "b"))] + [
        codec.encode_error(StartupError("no"))
    ]


METADATA: tuple[Target, ...] = (
    Target("command", _command, CORRUPT, _command_seeds),
    Target("image", _image, CORRUPT, _image_seeds, _reseal_image),
    Target("response", _response, (MilenaError,), _response_seeds),
)
