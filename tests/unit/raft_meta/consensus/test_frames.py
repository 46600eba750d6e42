"""The preface, the mutual handshake and the authenticated frames."""

import msgpack
import pytest

from raft_meta.consensus.frames import (
    BootstrapState,
    Channel,
    FrameDecoder,
    FrameEncoder,
    Handshake,
    HandshakeRole,
    PeerIdentity,
    PeerProtocolError,
    PeerRefusedError,
    Session,
    decode_preface,
    encode_preface,
)
from raft_meta.consensus.peer_certificates import certified_ids


def identity(node_id: int, cluster_id: str = "c1") -> PeerIdentity:
    return PeerIdentity(
        node_id=node_id,
        cluster_id=cluster_id,
        is_voter=True,
        bootstrap=BootstrapState.MEMBER,
        incarnation=7,
        voters=(1, 2, 3),
    )


def pair(
    *,
    secrets: tuple[bytes, bytes] = (b"s", b"s"),
    clusters: tuple[str, str] = ("c1", "c1"),
    channels: tuple[Channel, Channel] = (Channel.RAFT, Channel.RAFT),
    expected: int | None = 1,
    ids: tuple[int, int] = (2, 1),
) -> tuple[Handshake, Handshake]:
    dialer = Handshake(
        HandshakeRole.DIALER,
        identity(ids[0], clusters[0]),
        secrets[0],
        channel=channels[0],
        expected_node_id=expected,
    )
    acceptor = Handshake(
        HandshakeRole.ACCEPTOR, identity(ids[1], clusters[1]), secrets[1], channel=channels[1]
    )
    return dialer, acceptor


def shake(dialer: Handshake, acceptor: Handshake, cut: int = 1000) -> None:
    while not (dialer.is_complete and acceptor.is_complete):
        for source, target in ((dialer, acceptor), (acceptor, dialer)):
            data = source.outgoing()
            for start in range(0, len(data), cut):
                target.receive(data[start : start + cut])


def sessions(**options: object) -> tuple[Session, Session]:
    dialer, acceptor = pair(**options)  # type: ignore[arg-type]  # options are pair's own
    shake(dialer, acceptor)
    return dialer.finish(), acceptor.finish()


@pytest.mark.parametrize("channel", list(Channel))
def test_preface_names_its_channel(channel: Channel) -> None:
    preface = encode_preface(channel)
    assert len(preface) == 8
    assert decode_preface(preface) is channel


@pytest.mark.parametrize(
    ("preface", "sentence"),
    [
        (b"GET / HT", "not a peer"),
        (b"MLNA\x01R", "not a peer"),
        (b"MLNA\x01R\0\x01", "not a peer"),
        (b"MLNA\x02R\0\0", "protocol version 2"),
        (b"MLNA\x01X\0\0", "unknown channel"),
    ],
)
def test_preface_of_a_stranger_is_refused(preface: bytes, sentence: str) -> None:
    with pytest.raises(PeerProtocolError, match=sentence):
        decode_preface(preface)


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_handshake_exchanges_identities_in_any_cut(cut: int) -> None:
    dialer, acceptor = pair()
    shake(dialer, acceptor, cut)
    assert dialer.finish().peer == identity(1)
    assert acceptor.finish().peer == identity(2)


def test_handshake_without_a_secret_still_exchanges_identities() -> None:
    left, right = sessions(secrets=(b"", b""))
    assert (left.peer.node_id, right.peer.node_id) == (1, 2)


def test_acceptor_refuses_another_secret_and_sends_no_proof() -> None:
    dialer, acceptor = pair(secrets=(b"a", b"b"))
    acceptor.receive(dialer.outgoing())
    dialer.receive(acceptor.outgoing())
    with pytest.raises(PeerProtocolError, match="node 2 has another cluster secret"):
        acceptor.receive(dialer.outgoing())
    assert acceptor.outgoing() == b""
    assert not acceptor.is_complete


def test_dialer_refuses_an_acceptor_without_the_secret() -> None:
    dialer, acceptor = pair()
    acceptor.receive(dialer.outgoing())
    dialer.receive(acceptor.outgoing())
    with pytest.raises(PeerProtocolError, match="another cluster secret"):
        dialer.receive(b"\x00\x20" + bytes(32))


def test_reflected_proof_is_refused() -> None:
    dialer, acceptor = pair()
    acceptor.receive(dialer.outgoing())
    dialer.receive(acceptor.outgoing())
    with pytest.raises(PeerProtocolError):
        dialer.receive(dialer.outgoing())


def test_a_connection_of_one_channel_is_not_valid_on_the_other() -> None:
    dialer, acceptor = pair(channels=(Channel.RAFT, Channel.DATA))
    with pytest.raises(PeerProtocolError):
        shake(dialer, acceptor)


def test_foreign_cluster_is_refused_and_named_on_both_ends() -> None:
    dialer, acceptor = pair(clusters=("mine", "theirs"))
    shake(dialer, acceptor)
    with pytest.raises(PeerRefusedError, match=r"'theirs'.*'mine'") as refusal:
        dialer.finish()
    assert refusal.value.peer.cluster_id == "theirs"
    with pytest.raises(PeerRefusedError, match="'mine'"):
        acceptor.finish()


def test_unknown_cluster_id_is_no_foreign_cluster() -> None:
    left, _ = sessions(clusters=("", "theirs"))
    assert left.peer.cluster_id == "theirs"


def test_another_node_than_the_one_dialled_is_refused_on_both_ends() -> None:
    dialer, acceptor = pair(expected=5)
    shake(dialer, acceptor)
    with pytest.raises(PeerRefusedError, match="dialled node 5, but node 1 answered"):
        dialer.finish()
    with pytest.raises(PeerRefusedError, match="this is node 1"):
        acceptor.finish()


def test_a_peer_with_this_nodes_own_id_is_refused() -> None:
    dialer, acceptor = pair(ids=(1, 1), expected=None)
    shake(dialer, acceptor)
    with pytest.raises(PeerRefusedError, match="own id 1"):
        dialer.finish()


GOOD_HELLO = [2, "c", True, 1, 0, [1, 2], -1, bytes(16)]


def replaced(position: int, value: object) -> list[object]:
    return [*GOOD_HELLO[:position], value, *GOOD_HELLO[position + 1 :]]


@pytest.mark.parametrize(
    "hello",
    [
        5,
        GOOD_HELLO[:-1],
        replaced(0, "2"),
        replaced(0, True),
        replaced(1, b"c"),
        replaced(2, 1),
        replaced(3, 99),
        replaced(5, 3),
        replaced(5, ["x"]),
        replaced(5, [1] * 65),
        replaced(7, b"short"),
    ],
)
def test_malformed_hello_is_refused(hello: object) -> None:
    _, acceptor = pair()
    message = msgpack.packb(hello)
    with pytest.raises(PeerProtocolError, match="malformed hello"):
        acceptor.receive(len(message).to_bytes(2, "big") + message)


def test_oversized_handshake_message_is_refused_by_its_length() -> None:
    _, acceptor = pair()
    with pytest.raises(PeerProtocolError, match="too large"):
        acceptor.receive(b"\xff\xff")


def test_bytes_behind_the_handshake_are_kept_for_the_decoder() -> None:
    dialer, acceptor = pair()
    acceptor.receive(dialer.outgoing())
    dialer.receive(acceptor.outgoing())
    proof = dialer.outgoing()
    acceptor.receive(proof + b"frame")
    assert acceptor.finish().leftover == b"frame"


@pytest.mark.parametrize("cut", [1, 25, 1 << 16])
def test_frames_pass_in_both_directions_in_any_cut(cut: int) -> None:
    left, right = sessions()
    for source, target in ((left, right), (right, left)):
        wire = b"".join(source.encoder.encode(b"one"))
        wire += b"".join(source.encoder.encode(b"", [b"ab", memoryview(b"cd")]))
        wire += b"".join(source.encoder.encode(b"three", [bytes(5000)]))
        frames = []
        for start in range(0, len(wire), cut):
            frames += target.decoder.feed(wire[start : start + cut])
        assert frames == [(b"one", b""), (b"", b"abcd"), (b"three", bytes(5000))]


def test_body_chunks_are_not_copied_by_the_encoder() -> None:
    body = memoryview(bytearray(10))
    assert FrameEncoder(b"k").encode(b"h", [body])[1] is body


@pytest.mark.parametrize("position", [8, 24, 26])
def test_a_changed_mac_or_header_is_refused(position: int) -> None:
    wire = bytearray(b"".join(FrameEncoder(b"k").encode(b"header", [b"body"])))
    wire[position] ^= 1
    with pytest.raises(PeerProtocolError, match="failed its check"):
        FrameDecoder(b"k").feed(wire)


def test_a_repeated_dropped_or_reordered_frame_is_refused() -> None:
    encoder = FrameEncoder(b"k")
    first, second = (b"".join(encoder.encode(name)) for name in (b"1", b"2"))
    decoder = FrameDecoder(b"k")
    assert decoder.feed(first) == [(b"1", b"")]
    with pytest.raises(PeerProtocolError):
        decoder.feed(first)
    with pytest.raises(PeerProtocolError):
        FrameDecoder(b"k").feed(second)


@pytest.mark.parametrize(("header", "body"), [(11, 0), (0, 11), (2**32 - 1, 0)])
def test_a_length_above_its_bound_is_refused_before_the_bytes_arrive(
    header: int, body: int
) -> None:
    prefix = header.to_bytes(4, "big") + body.to_bytes(4, "big") + bytes(16)
    with pytest.raises(PeerProtocolError, match="too large"):
        FrameDecoder(b"k", header_bytes_max=10, body_bytes_max=10).feed(prefix)


@pytest.mark.parametrize("certified", [{1}, {1, 7}])
def test_a_peer_whose_certificate_is_its_own_is_let_in(certified: set[int]) -> None:
    dialer, acceptor = pair()
    dialer.verifies_id = True
    dialer.certified_ids = frozenset(certified)
    shake(dialer, acceptor)
    assert dialer.finish().peer.node_id == 1


@pytest.mark.parametrize("certified", [set(), {2}, {11, 10}])
def test_a_peer_whose_certificate_is_anothers_is_believed_nothing(certified: set[int]) -> None:
    # Not even that it belongs to another cluster.
    dialer, acceptor = pair(clusters=("c1", "c2"))
    dialer.verifies_id = True
    dialer.certified_ids = frozenset(certified)
    with pytest.raises(PeerProtocolError, match="says that it is node 1, and its certificate") as e:
        shake(dialer, acceptor)
    assert (dialer.peer, dialer.is_complete, acceptor.is_complete) == (None, False, False)
    assert not isinstance(e.value, PeerRefusedError)
    assert "DNS:node-1 or URI:milena:node:1" in str(e.value)


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        ((("DNS", "node-1"), ("URI", "milena:node:22"), ("DNS", "localhost")), {1, 22}),
        ((("DNS", "node-999999999"),), {999_999_999}),
        ((("DNS", "node-1.example.org"), ("DNS", "xnode-1"), ("DNS", "node-01")), set()),
        ((("DNS", "node-1\n"), ("DNS", "node-*"), ("DNS", "*"), ("DNS", "node-0")), set()),
        ((("DNS", "milena:node:1"), ("URI", "node-1"), ("email", "node-1")), set()),
        ((("DNS", "node-1000000000"), ("DNS", "node-\u0661")), set()),
    ],
)
def test_a_certificate_names_nodes(names: object, ids: set[int]) -> None:
    assert certified_ids({"subjectAltName": names}) == ids


@pytest.mark.parametrize("shown", [None, {}, {"subject": ((("commonName", "node-1"),),)}])
def test_a_certificate_without_names_names_no_node(shown: object) -> None:
    assert certified_ids(shown) == set()


def test_a_dialer_that_reaches_the_api_is_told_so() -> None:
    dialer, _ = pair()
    with pytest.raises(
        PeerProtocolError, match="an HTTP server responds there: give the peer port"
    ):
        dialer.receive(b"HTTP/1.1 400 Bad Request\r\n")
