"""Messages between nodes: what is declared is what arrives, and nothing else does."""

from enum import StrEnum

import msgspec
import pytest
from msgspec import field

from milena.model.errors import MalformedRequestError
from node.peers import codec as peer_codec
from node.peers.messages import Blob, Message, pack, unpack
from node.peers.port import Fields


class Colour(StrEnum):
    RED = "red"


class Box(msgspec.Struct, frozen=True, array_like=True):
    number: int
    content: Blob


class Shelf(Message, frozen=True, kw_only=True):
    topic_id: str = field(name="topic")
    is_full: bool = False
    colour: Colour | None = None
    boxes: tuple[Box, ...] = ()


def travelled(message: Message) -> tuple[Fields, bytes]:
    fields, chunks = pack(message)
    arrived = peer_codec.decode_header(peer_codec.encode_answer(0, fields))[-1]
    assert isinstance(arrived, dict)
    return arrived, b"".join(chunks)


def test_a_message_arrives_as_it_was_sent() -> None:
    boxes = tuple(Box(n, Blob(data)) for n, data in enumerate((b"one", b"", b"three")))
    shelf = Shelf(topic_id="t", is_full=True, colour=Colour.RED, boxes=boxes)
    fields, body = travelled(shelf)
    assert fields == {
        "topic": "t",
        "is_full": True,
        "colour": "red",
        "boxes": [[0, 3], [1, 0], [2, 5]],
    }
    assert body == b"onethree"
    assert unpack(Shelf, fields, body) == shelf


def test_a_body_is_not_copied_to_be_sent() -> None:
    data = b"x" * 1000
    _, chunks = pack(Shelf(topic_id="t", boxes=(Box(1, Blob(data)),)))
    assert chunks[0] is data


def test_what_another_release_sends_besides_is_passed_over() -> None:
    assert unpack(Shelf, {"topic": "t", "height": [{"a": b"b"}]}) == Shelf(topic_id="t")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "required field `topic`"),
        ({"topic": None}, r"\$.topic"),
        ({"topic": b"t"}, r"\$.topic"),
        ({"topic": "t", "is_full": 1}, r"\$.is_full"),
        ({"topic": "t", "colour": "blue"}, r"\$.colour"),
        ({"topic": "t", "boxes": {}}, r"\$.boxes"),
        ({"topic": "t", "boxes": [[1]]}, r"\$.boxes\[0\]"),
        ({"topic": "t", "boxes": [[True, 0]]}, r"\$.boxes\[0\]\[0\]"),
        ({"topic": "t", "boxes": [[1.0, 0]]}, r"\$.boxes\[0\]\[0\]"),
        ({"topic": "t", "boxes": [["1", 0]]}, r"\$.boxes\[0\]\[0\]"),
        ({"topic": "t", "boxes": [[1, -1]]}, r"\$.boxes\[0\]\[1\]"),
        ({"topic": "t", "boxes": [[1, 2], [2, 2]]}, r"\$.boxes\[1\]\[1\]"),
        ({"topic": "t", "boxes": [[1, True]]}, r"\$.boxes\[0\]\[1\]"),
        ({"topic": "t", "boxes": [[1, b"abc"]]}, r"\$.boxes\[0\]\[1\]"),
        ({"topic": "t", 5: 1}, "Expected `str`"),
    ],
)
def test_what_has_another_shape_is_refused_and_the_refusal_says_where(
    fields: Fields, said: str
) -> None:
    with pytest.raises(MalformedRequestError, match=said):
        unpack(Shelf, fields, b"abc")
