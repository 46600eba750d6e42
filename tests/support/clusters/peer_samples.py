"""Compare the encoding of calls between nodes with the first release's (``tests/data/peer/calls.json``)."""

import json
from pathlib import Path

from node.peers import codec as peer_codec
from node.peers.messages import AnswerT, CallType, Message, RequestT, pack, unpack
from node.peers.port import Fields

_SAMPLES = json.loads(
    (Path(__file__).parents[2] / "data/peer/calls.json").read_text(encoding="utf-8")
)


def names_of_samples() -> frozenset[str]:
    """Return the names of calls that have samples."""
    return frozenset(_SAMPLES)


def samples_of(name: str, side: str) -> list[tuple[bytes, bytes]]:
    """Return the headers and bodies of the frames; ``side`` is "request" or "answer"."""
    return [
        (bytes.fromhex(sample["header"]), bytes.fromhex(sample.get("body", "")))
        for sample in _SAMPLES[name][side]
    ]


def calls_of(module: object) -> dict[str, CallType[Message, Message]]:
    """Return the rows of a module's table of calls, by name."""
    return {call.name: call for call in vars(module).values() if isinstance(call, CallType)}


def fields_of(header: bytes) -> Fields:
    fields = peer_codec.decode_header(header)[-1]
    assert isinstance(fields, dict)
    return fields


def check_samples(call: CallType[RequestT, AnswerT], side: str, messages: list[Message]) -> None:
    """Check that the samples decode to these messages, and that the messages encode with the same keys and sizes."""
    samples = samples_of(call.name, side)
    kind = call.request if side == "request" else call.answer
    assert [unpack(kind, fields_of(header), body) for header, body in samples] == messages
    for message, (header, body) in zip(messages, samples, strict=True):
        fields, chunks = pack(message)
        if side == "request":
            packed = peer_codec.encode_request(0, call.name, fields)
        else:
            packed = peer_codec.encode_answer(0, fields)
        assert fields_of(packed) == fields_of(header)
        assert len(packed) == len(header)
        assert b"".join(chunks) == body
