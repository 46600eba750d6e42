"""All messages that are not on the path of a record, by the schemas of kafka-python.

Messages that it lacks have schemas of our own (``consumer_schemas``). No other module imports kafka-python. Its
decoders raise all kinds of errors on hostile bytes, and each of them means a malformed frame.

A decoded message is an object whose fields have the names of Kafka's message definitions in snake case. A response is
encoded from mappings with these names. Fields that are missing have the defaults of the definitions, and fields that
the version does not have are left out.
"""

import weakref
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

from kafka.protocol import admin, consumer, metadata, producer, sasl
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.schemas import BaseField, StructField

from node.kafka.wire.consumer_schemas import SCHEMAS
from node.kafka.wire.primitives import MalformedFrameError, WireReader

Fields = Mapping[str, Any]
Message: TypeAlias = Any
"""A decoded message; its fields are attributes."""


VERSION_MAX = (1 << 15) - 1


def _classes(*modules: ModuleType) -> dict[tuple[int, str], Any]:
    found: dict[tuple[int, str], Any] = {}
    for module in modules:
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, ApiMessage) and kind is not ApiMessage:
                message: Any = kind
                found[message.API_KEY, message.type] = message
    return found


def _own_classes(schemas: Iterable[Fields]) -> dict[tuple[int, str], Any]:
    """Return a class for each schema, as the library makes one from its own files."""
    found: dict[tuple[int, str], Any] = {}
    for schema in schemas:
        kind: Any = type(ApiMessage)(
            schema["name"],
            (ApiMessage,),
            {"_json": schema, "_struct": StructField(schema), "__module__": __name__},
            init=False,
        )
        kind._flexible_versions = BaseField.parse_versions(schema["flexibleVersions"])
        kind._valid_versions = BaseField.parse_versions(schema["validVersions"])
        kind._class_version, kind._VERSIONS = None, {}
        kind._struct.set_data_class(weakref.proxy(kind))
        found[kind.API_KEY, kind.type] = kind
    return found


_CLASSES = _classes(admin, consumer, metadata, producer, sasl) | _own_classes(SCHEMAS)
"""The class of each message, by API key and ``request`` or ``response``."""


def flexible_from(key: int) -> int:
    """Return the first flexible version of an API; a version that no client sends if there is none."""
    first: int = _CLASSES[key, "request"]._flexible_versions[0]
    return first if first >= 0 else VERSION_MAX


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
        message, _ = decode_from(data, 0)
    except Exception as error:
        raise MalformedFrameError(f"{kind.__name__}: {type(error).__name__}: {error}") from error
    _check_nulls(kind, version, message)
    return message


class _FieldRule(NamedTuple):
    """A field of a structure. ``kind``: the class of the structures in it; None: it has none."""

    name: str
    is_nullable: bool
    is_array: bool
    kind: type[Message] | None


_RULES: dict[tuple[object, int], tuple[_FieldRule, ...]] = {}
"""The fields of each structure that was decoded, by class and version."""


def _rules(kind: type[Message], version: int) -> tuple[_FieldRule, ...]:
    rules = _RULES.get((kind, version))
    if rules is None:
        rules = _RULES[kind, version] = _new_rules(kind, version)
    return rules


def _new_rules(kind: type[Message], version: int) -> tuple[_FieldRule, ...]:
    return tuple(
        _FieldRule(
            name,
            # The library decodes the zero id as None.
            field.nullable_for_version_q(version) or field.type_str == "uuid",
            field.is_array(),
            field.data_class if field.is_struct() or field.is_struct_array() else None,
        )
        for name, field in kind.fields.items()
        if field.for_version_q(version)
    )


def _check_nulls(kind: type[Message], version: int, message: Message) -> None:
    """Refuse a null that the definitions do not allow. The library takes one everywhere.

    Raises:
        MalformedFrameError: the message has such a null.
    """
    for rule in _rules(kind, version):
        value = getattr(message, rule.name)
        if value is None:
            if not rule.is_nullable:
                raise MalformedFrameError(f"{kind.__name__}: {rule.name} is null")
        elif rule.kind is not None:
            for inner in value if rule.is_array else (value,):
                _check_nulls(rule.kind, version, inner)
        elif rule.is_array and None in value:
            raise MalformedFrameError(f"{kind.__name__}: {rule.name} has a null")


def has_throttle(key: int) -> bool:
    """Return whether responses of an API tell how long the client should wait."""
    return "throttle_time_ms" in _CLASSES[key, "response"].fields


def encode(key: int, version: int, fields: Fields) -> bytes:
    """Return a response."""
    message = _built(_CLASSES[key, "response"], fields, version)
    return bytes(message.encode(version=version))


def decode_response(key: int, version: int, data: bytes) -> Message:
    """Return a response, as a client reads it."""
    return _CLASSES[key, "response"].decode(data, version=version)


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
        elif not field.for_version_q(version):
            continue  # the library has no class for a structure that the version lacks
        elif field.is_struct():
            values[name] = _built(field.data_class, value, version)
        else:
            values[name] = [_built(field.data_class, one, version) for one in value]
    return kind(version=version, **values)
