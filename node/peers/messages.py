"""Declared messages between nodes. Each message is a frozen class; each call has a row: name, request, response.

    class ShelfRequest(Message, frozen=True, kw_only=True):
        topic_id: str = field(name="topic")           # whole names in the code, short ones on the wire
        wait_ms: int = 0                              # may be missing

    SHELF = CallType("shelf", ShelfRequest, ShelfAnswer)

A message is sent as the fields of a frame's header (``node.peers.codec``): a map of plain values, with rows as arrays.
A large part of it, a ``Blob``, is sent in the frame's body. In the header, the field of a blob holds the blob's length.
Blobs are in the body in the order of their fields, and are not copied when the message is packed.

A peer's message is checked as a whole before any code reads it: every field has exactly the declared type, and a number
is neither a boolean nor a text. Nodes of different releases understand each other: unknown fields are ignored, and a
missing field gets its default. So a new field must have a default, and the wire name of an old field never changes.

Within a node, messages are passed as objects, without encoding. A value of a port may be a message, too.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from milena.model.errors import FateUnknownError, MalformedRequestError
from node.peers.codec import Buffer, Fields, PeerChannel
from node.peers.port import Handler, Peers, Reply


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A request or a response. Its sequences are tuples."""


class Done(Message, frozen=True, kw_only=True):
    """An empty response: the request was carried out."""


class Blob:
    """Bytes of a message that are sent in the frame's body."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blob) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)


RequestT = TypeVar("RequestT", bound=msgspec.Struct)
AnswerT = TypeVar("AnswerT", bound=msgspec.Struct)
MessageT = TypeVar("MessageT", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class CallType(Generic[RequestT, AnswerT]):
    """A declared call: its name on the wire, the class of the request and the class of the response."""

    name: str
    request: type[RequestT]
    answer: type[AnswerT]


def pack(message: msgspec.Struct) -> Reply:
    """Return a message as fields, and the chunks of its body."""
    chunks: list[Buffer] = []

    def take_out(value: object) -> int:
        assert isinstance(value, Blob), f"{type(value).__name__} cannot travel"
        chunks.append(value.data)
        return len(value.data)

    fields: Fields = msgspec.to_builtins(message, enc_hook=take_out)
    return fields, chunks


def unpack(message_type: type[MessageT], fields: Fields, body: bytes = b"") -> MessageT:
    """Make a message from fields and a body; the reverse of ``pack``.

    Raises:
        MalformedRequestError: the fields do not fit the class; the error says where.
    """
    position = 0

    def cut_off(_: type, size: object) -> Blob:
        nonlocal position
        if type(size) is not int or not 0 <= size <= len(body) - position:
            raise ValueError(f"Expected the length of a piece of {len(body)} bytes, got {size!r}")
        position += size
        return Blob(body[position - size : position])

    try:
        return msgspec.convert(fields, message_type, dec_hook=cut_off)
    except msgspec.ValidationError as error:
        raise MalformedRequestError(f"a peer's {message_type.__name__}: {error}") from error


def peer_handler(
    call: CallType[RequestT, AnswerT], serve: Callable[[RequestT], Awaitable[AnswerT]]
) -> Handler:
    """Return a handler of this call for the peer port: it unpacks the request and packs the response of ``serve``."""

    async def on_request(peer_id: int, fields: Fields, body: bytes) -> Reply:
        del peer_id
        return pack(await serve(unpack(call.request, fields, body)))

    return on_request


async def ask(
    peer: Peers,
    node_id: int,
    call: CallType[RequestT, AnswerT],
    request: RequestT,
    *,
    timeout_ms: float,
    channel: PeerChannel = PeerChannel.RPC,
) -> AnswerT:
    """Send a request to another node and return its response. Raises the same errors as ``ask_with_body``."""
    answer, _ = await ask_with_body(
        peer, node_id, call, request, timeout_ms=timeout_ms, channel=channel
    )
    return answer


async def ask_with_body(
    peer: Peers,
    node_id: int,
    call: CallType[RequestT, AnswerT],
    request: RequestT,
    *,
    body: bytes | None = None,
    timeout_ms: float,
    channel: PeerChannel = PeerChannel.RPC,
) -> tuple[AnswerT, bytes]:
    """Send a request with ``body`` to another node; return its response, and the response's body.

    Raises:
        PeerUnreachableError: nothing was sent.
        FateUnknownError: the request was sent, and its fate is unknown, or the response is malformed.
        MilenaError: the peer's handler raised this error.
    """
    fields, chunks = pack(request)
    if body is not None:
        chunks = [*chunks, body]
    answer, answered = await peer.call(
        node_id, call.name, fields, chunks, timeout_ms=timeout_ms, channel=channel
    )
    try:
        return unpack(call.answer, answer, answered), answered
    except MalformedRequestError as error:
        raise FateUnknownError(f"node {node_id} has answered, but {error.message}") from error
