"""Messages between nodes, declared: one frozen type each, and one row for each call, name -> (request, answer).

    class ShelfRequest(Message, frozen=True, kw_only=True):
        topic_id: str = field(name="topic")           # whole names in the code, short ones on the wire
        wait_ms: int = 0                              # may be missing

    SHELF = CallType("shelf", ShelfRequest, ShelfAnswer)

A message travels as the fields of a frame's header (``peer_codec``): a map of plain values, rows of many as arrays.
What is large of it, a ``Blob``, travels in the body of the frame, in the order of the fields, and is never copied into
one piece with others; its field holds the length.

What comes from a peer is checked as a whole before anything looks at it: every field has exactly the type that is
declared, a number is no boolean and no text. Between releases: a field that a node does not know is passed over, one
that may be missing has a default. So a new field is declared with a default, and the wire's name of an old one stays.

On a node itself messages go from hand to hand, unpacked.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from milena.model.errors import FateUnknownError, MalformedRequestError
from node.peers.codec import Buffer, Fields, PeerChannel
from node.peers.port import Handler, Peers, Reply


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A request or an answer; sequences in it are tuples."""


class Done(Message, frozen=True, kw_only=True):
    """The answer that says nothing but that it is done."""


class Blob:
    """Bytes of a message that travel in the frame's body."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blob) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)


RequestT = TypeVar("RequestT", bound=Message)
AnswerT = TypeVar("AnswerT", bound=Message)
MessageT = TypeVar("MessageT", bound=Message)


@dataclass(frozen=True, slots=True)
class CallType(Generic[RequestT, AnswerT]):
    """A row of a room's table of calls: the request's type on the wire, and what goes there and back."""

    name: str
    request: type[RequestT]
    answer: type[AnswerT]


def pack(message: Message) -> Reply:
    """The fields of a message, and the chunks of its body."""
    chunks: list[Buffer] = []

    def take_out(value: object) -> int:
        assert isinstance(value, Blob), f"{type(value).__name__} cannot travel"
        chunks.append(value.data)
        return len(value.data)

    fields: Fields = msgspec.to_builtins(message, enc_hook=take_out)
    return fields, chunks


def unpack(message_type: type[MessageT], fields: Fields, body: bytes = b"") -> MessageT:
    """Read a message; the reverse of ``pack``.

    Raises:
        MalformedRequestError: it has another shape; the sentence says where.
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
    """The handler of this row, as the peer port calls it."""

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
    """Ask another node; raises as ``ask_with_body`` does."""
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
    """Ask another node; ``body`` travels behind the request, and what is returned came behind the answer.

    Raises:
        PeerUnreachableError: nothing was sent.
        FateUnknownError: sent; what became of it is not known, or the answer is not understood.
        MilenaError: what the peer's handler raised.
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
