"""All messages that are not on the path of a record, by the schemas of kafka-python.

This is the only module that imports kafka-python. Its decoders raise all kinds of errors on hostile bytes, and each of
them means a malformed frame.

A decoded message is an object whose fields have the names of Kafka's message definitions in snake case. A response is
encoded from mappings with these names. Fields that are missing have the defaults of the definitions, and fields that
the version does not have are left out.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any, TypeAlias

from kafka.protocol import admin, consumer, metadata, producer, sasl
from kafka.protocol.api_message import ApiMessage

from node.kafka.wire.primitives import MalformedFrameError, WireReader

Fields = Mapping[str, Any]
Message: TypeAlias = Any
"""A decoded message; its fields are attributes."""


def _classes(*modules: ModuleType) -> dict[tuple[int, str], Any]:
    found: dict[tuple[int, str], Any] = {}
    for module in modules:
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, ApiMessage) and kind is not ApiMessage:
                message: Any = kind
                found[message.API_KEY, message.type] = message
    return found


_CLASSES = _classes(admin, consumer, metadata, producer, sasl)
"""The class of each message, by API key and ``request`` or ``response``."""


def flexible_from(key: int) -> int:
    """Return the first flexible version of an API."""
    first: int = _CLASSES[key, "request"]._flexible_versions[0]
    return first


def decode(key: int, version: int, reader: WireReader) -> Message:
    """Return the request in the rest of a frame.

    Raises:
        MalformedFrameError: the bytes are not one.
    """
    kind = _CLASSES[key, "request"]
    data = reader.rest()
    try:
        is_flexible = kind.flexible_version_q(version)
        decode_from = kind._struct.compiled_decode_from(
            version, compact=is_flexible, tagged=is_flexible, data_class=kind
        )
        message, end = decode_from(data, 0)
    except Exception as error:
        raise MalformedFrameError(f"{kind.__name__}: {type(error).__name__}: {error}") from error
    # The library ignores what follows.
    if end != len(data):
        raise MalformedFrameError(f"{kind.__name__}: {len(data) - end} bytes follow the message")
    return message


def encode(key: int, version: int, fields: Fields) -> bytes:
    """Return a response."""
    message = _built(_CLASSES[key, "response"], fields, version)
    return bytes(message.encode(version=version))


def encode_request(key: int, version: int, fields: Fields) -> bytes:
    """Return a request, as a client sends it."""
    return bytes(_built(_CLASSES[key, "request"], fields, version).encode(version=version))


def _built(kind: type[Message], fields: Fields, version: int) -> Message:
    """Return an object of a structure and of all those in it."""
    values = {}
    for name, value in fields.items():
        field = kind.fields[name]
        if not field.for_version_q(version):
            continue
        if value is None or not (field.is_struct() or field.is_struct_array()):
            values[name] = value
        elif field.is_struct():
            values[name] = _built(field.data_class, value, version)
        else:
            values[name] = [_built(field.data_class, one, version) for one in value]
    return kind(version=version, **values)
