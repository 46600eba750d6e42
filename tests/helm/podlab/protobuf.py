"""Reads the one thing that helm sends as protobuf: the Secret that records a release.

Layout: ``k8s\\0``, then a runtime.Unknown (field 2 is the object). Of the object: 1 metadata, 2 data, 3 type; of
metadata: 1 name, 11 labels; a map entry is a message of 1 key and 2 value.
Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding
"""

import base64
from collections.abc import Mapping, Sequence

from tests.helm.podlab.manifest import Document

MAGIC = b"k8s\x00"

Fields = Mapping[int, Sequence[bytes]]


def decode_secret(body: bytes) -> Document:
    """The Secret as its JSON form.

    Raises:
        ValueError: The body is not of this layout.
    """
    if not body.startswith(MAGIC):
        raise ValueError("no protobuf envelope")
    try:
        secret = _fields(_fields(body[len(MAGIC) :])[2][0])
        metadata = _fields(secret[1][0])
        labels: Document = {
            name: value.decode() for name, value in _pairs(metadata.get(11, ())).items()
        }
        data: Document = {
            name: base64.b64encode(value).decode()
            for name, value in _pairs(secret.get(2, ())).items()
        }
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": secret[3][0].decode(),
            "metadata": {"name": metadata[1][0].decode(), "labels": labels},
            "data": data,
        }
    except (KeyError, IndexError) as error:
        raise ValueError("not a Secret") from error


def _pairs(entries: Sequence[bytes]) -> dict[str, bytes]:
    fields = [_fields(entry) for entry in entries]
    return {field[1][0].decode(): field.get(2, [b""])[0] for field in fields}


def _fields(message: bytes) -> dict[int, list[bytes]]:
    """Field number → values in order. A varint is kept as its 8 bytes; other fixed widths are not used here."""
    found: dict[int, list[bytes]] = {}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        if tag & 7 == 0:
            number, at = _varint(message, at)
            value = number.to_bytes(8, "big")
        elif tag & 7 == 2:
            size, at = _varint(message, at)
            value, at = message[at : at + size], at + size
        else:
            raise ValueError(f"wire type {tag & 7} is not used in a Secret")
        found.setdefault(tag >> 3, []).append(value)
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
