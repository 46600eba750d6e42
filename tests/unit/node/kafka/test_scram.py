"""The messages of SCRAM: names, nonces and bindings, and bytes that are no message of the exchange."""

import base64
import re
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kafka.net.sasl.scram import ScramClient

from milena.model.access import ScramMechanism
from milena.model.errors import UnauthenticatedError
from node.access.scram import credential_of
from node.kafka.scram import MESSAGE_BYTES_MAX, ScramExchange
from raft_meta.machine.access.access import SCRAM_LEVEL
from raft_meta.machine.commands import PutUser
from raft_meta.machine.copies import replace
from tests.support.fakes.ports import FakeNode
from tests.support.http.credentials import ClosedNode

HERE = "10.0.0.1"
PASSWORD = "a good password"
SHA_256 = ScramMechanism.SHA_256
USERS = ("ann", "a=b@c")
PROOF = base64.b64encode(bytes(32)).decode()


def closed_node() -> FakeNode:
    """A node with users that have SCRAM credentials."""
    node = FakeNode()
    node.image = replace(node.image, feature_level=SCRAM_LEVEL)
    ClosedNode(node)
    for name in USERS:
        credential = credential_of(SHA_256, PASSWORD, salt=b"salt", iterations=4096)
        put = PutUser(name=name, version=0, verifiers=(), is_superuser=False)
        node.access.store.apply(replace(put, scram=(credential,), decoy_key=b"d" * 32))
    return node


def exchange_with(node: FakeNode) -> ScramExchange:
    return ScramExchange(SHA_256, node.access.scram_logins, HERE)


class Client(ScramClient):
    """The client of kafka-python, with headers and names as the RFC has them."""

    def __init__(self, user: str, *, header: str = "n,,", rest: str = "") -> None:
        super().__init__(user.replace("=", "=3D").replace(",", "=2C"), PASSWORD, SHA_256)
        self.header, self.rest = header, rest

    def first(self) -> bytes:
        bare = self.first_message().removeprefix(b"n,,") + self.rest.encode()
        self.auth_message = bare
        return self.header.encode() + bare

    def final(self, answer: bytes, rest: str = "") -> bytes:
        """Return the final message; ``rest``: what follows the nonce, such as extensions."""
        binding = base64.b64encode(self.header.encode())
        self.process_server_first_message(answer)
        unproved = b"c=" + binding + b",r=" + self.nonce + rest.encode()
        self.auth_message = self.auth_message.rpartition(b",c=")[0] + b"," + unproved
        signature = self.hmac(self.stored_key, self.auth_message)
        proof = bytes(one ^ other for one, other in zip(self.client_key, signature, strict=True))
        self.server_signature = self.hmac(self.server_key, self.auth_message)
        return unproved + b",p=" + base64.b64encode(proof)


@pytest.mark.parametrize(
    ("client", "user"),
    [
        (Client("ann"), "ann"),
        (Client("a=b@c"), "a=b@c"),
        (Client("ann", header="n,a=ann,"), "ann"),
        (Client("a=b@c", header="n,a=a=3Db@c,"), "a=b@c"),
        (Client("ann", rest=",x=1,abc=d=e"), "ann"),
    ],
)
def test_a_client_proves_its_password(client: Client, user: str) -> None:
    exchange = exchange_with(closed_node())
    answer = exchange.take(client.first())
    assert exchange.login is None
    assert re.fullmatch(rb"r=[!-+\--~]+,s=c2FsdA==,i=4096", answer)
    client.process_server_final_message(exchange.take(client.final(answer)))
    assert exchange.login is not None
    assert exchange.login.user == exchange.user == user


def test_the_final_message_may_have_extensions() -> None:
    exchange, client = exchange_with(closed_node()), Client("ann")
    answer = exchange.take(client.first())
    client.process_server_final_message(exchange.take(client.final(answer, ",x=1")))


def test_a_mandatory_extension_of_the_final_message_is_refused() -> None:
    exchange, client = exchange_with(closed_node()), Client("ann")
    answer = exchange.take(client.first())
    with pytest.raises(UnauthenticatedError, match="leave out m="):
        exchange.take(client.final(answer, ",m=x"))


def test_two_exchanges_have_two_nonces() -> None:
    node = closed_node()
    first = [exchange_with(node).take(b"n,,n=ann,r=abc") for _ in range(2)]
    assert first[0] != first[1]
    assert all(answer.startswith(b"r=abc") for answer in first)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0",
        b"n,,",
        b"n,,n=ann",
        b"n,,n=ann,r=",
        b"n,,n=,r=abc",
        b"n,,r=abc,n=ann",
        b"n,n=ann,r=abc",
        b"n=ann,r=abc",
        b" n,,n=ann,r=abc",
        b"n,,n=ann,r=abc\n",
        b"n,,n=ann,r=a b",
        b"n,,n=ann,r=\xc3\xa9",
        b"n,,n=ann,r=abc,",
        b"n,,n=ann,r=abc,x",
        b"n,,n=ann,r=abc,=x",
        b"n,,n=ann,r=abc,x=",
        b"n,,n=ann,r=abc,x=\0",
        b"n,,n=a\0n,r=abc",
        b"n,,n=a=n,r=abc",
        b"n,,n=a=2c,r=abc",
        b"n,,n=\xff,r=abc",
        b"y,,n=ann,r=abc",
        b"p=tls-unique,,n=ann,r=abc",
        b"n,a=bob,n=ann,r=abc",
        b"n,a=,n=ann,r=abc",
        b"n,b=ann,n=ann,r=abc",
        b"n,,m=x,n=ann,r=abc",
        b"n,,n=ann,r=abc,m=x",
        b"n,,n=ann,r=abc,tokenauth=true",
        b"n,,n=ann,r=abc,x=1,TokenAuth=false",
        b"n,,n=ann,r=" + b"a" * 1025,
        b"n,,n=ann,r=abc,x=" + b"1" * MESSAGE_BYTES_MAX,
        b"\0ann\0a good password",
    ],
)
def test_bytes_that_are_no_first_message_are_refused(message: bytes) -> None:
    exchange = exchange_with(closed_node())
    with pytest.raises(UnauthenticatedError):
        exchange.take(message)
    assert exchange.login is None


def test_a_delegation_token_is_refused_with_what_to_use() -> None:
    with pytest.raises(UnauthenticatedError, match="a token of the cluster with PLAIN"):
        exchange_with(closed_node()).take(b"n,,n=ann,r=abc,tokenauth=true")


Spoil = Callable[[bytes, bytes], bytes]
"""Variants of a good final message and its nonce that are not good."""


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _, __: b"",
        lambda good, _: good[:-1],
        lambda good, _: good + b"=",
        lambda good, _: good + b",x=1",
        lambda good, _: good.partition(b",p=")[0],
        lambda good, _: good.partition(b",p=")[0] + b",p=",
        lambda good, _: good.partition(b",p=")[0] + b",p=" + base64.b64encode(bytes(31)),
        lambda good, _: good.partition(b",p=")[0] + b",p=" + base64.b64encode(bytes(33)),
        lambda good, _: good.partition(b",p=")[0] + b",p=!!!!",
        lambda good, _: good.replace(b"c=biws", b"c=eSws"),
        lambda good, _: good.replace(b"c=biws", b"c=biw"),
        lambda good, _: good.replace(b"c=biws,", b""),
        lambda good, _: good.replace(b"c=biws", b"c="),
        lambda good, nonce: good.replace(nonce, nonce + b"x"),
        lambda good, nonce: good.replace(nonce, nonce[:-1]),
        lambda good, nonce: good.replace(nonce, nonce.swapcase()),
        lambda good, _: good.replace(b",p=", b",m=x,p="),
        lambda good, _: good.replace(b",p=", b",x=1,p="),
        lambda good, _: good.replace(b",p=", b",\xff,p="),
        lambda _, nonce: b"c=biws,r=" + nonce + b",p=" + PROOF.encode(),
        lambda _, __: b"n,,n=ann,r=abc",
        lambda good, _: good + b" " * MESSAGE_BYTES_MAX,
    ],
)
def test_bytes_that_are_no_good_final_message_are_refused(spoil: Spoil) -> None:
    exchange, client = exchange_with(closed_node()), Client("ann")
    good = client.final(exchange.take(client.first()))
    spoilt = spoil(good, client.nonce)
    assert spoilt != good
    with pytest.raises(UnauthenticatedError):
        exchange.take(spoilt)
    assert exchange.login is None


def test_the_binding_is_the_header_of_the_first_message() -> None:
    exchange, client = exchange_with(closed_node()), Client("ann", header="n,a=ann,")
    answer = exchange.take(client.first())
    client.header = "n,,"
    with pytest.raises(UnauthenticatedError, match="nonce or binding differs"):
        exchange.take(client.final(answer))


def test_the_nonce_is_that_of_the_exchange_even_if_the_proof_fits_another() -> None:
    exchange, client = exchange_with(closed_node()), Client("ann")
    answer = exchange.take(client.first())
    with pytest.raises(UnauthenticatedError, match="nonce or binding differs"):
        exchange.take(client.final(answer, "x"))


def test_a_message_of_another_exchange_proves_nothing() -> None:
    node, client = closed_node(), Client("ann")
    exchange = exchange_with(node)
    first = client.first()
    final = client.final(exchange.take(first))
    again = exchange_with(node)
    again.take(first)
    with pytest.raises(UnauthenticatedError):
        again.take(final)
    assert exchange.take(final).startswith(b"v=")


PIECES = st.sampled_from(
    [
        b"n,",
        b"a=ann",
        b"n=ann",
        b"r=abc",
        b",",
        b"=",
        b"c=biws",
        b"p=",
        b"m=x",
        b"=2C",
        b"\0",
        b"\xff",
    ]
)


@given(
    first=st.lists(PIECES, max_size=8), final=st.lists(PIECES | st.binary(max_size=9), max_size=8)
)
@example(first=[b"n,", b",", b"n=ann", b",", b"r=abc"], final=[b"c=biws", b",", b"r=abc"])
@settings(max_examples=300, deadline=None)
def test_no_bytes_do_more_than_raise_a_typed_error(first: list[bytes], final: list[bytes]) -> None:
    exchange = exchange_with(NODE)
    try:
        exchange.take(b"".join(first))
        exchange.take(b"".join(final))
    except UnauthenticatedError:
        pass
    assert exchange.login is None


NODE = closed_node()
