"""Sign-ins by SCRAM: who is let in, for how long, what unknown users see, and how often a client may be wrong."""

import base64
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kafka.net.sasl.scram import ScramClient

from http_api.access.callers import ANYBODY, Caller
from milena.model.access import AccessMode, ScramMechanism
from milena.model.errors import (
    FeatureLevelError,
    InvalidAccessError,
    NotReadyError,
    TooManyRequestsError,
    UnauthenticatedError,
    UserNotFoundError,
)
from milena.model.secret import Secret
from node.access.passwords import WRONG_AT_ONCE
from node.access.scram import ITERATIONS, SALT_BYTES, credential_of
from node.access.scram_logins import ScramChallenge
from raft_meta.machine.access.access import SCRAM_LEVEL
from raft_meta.machine.copies import replace
from tests.support.fakes.access import SILENCE_MS_MAX
from tests.support.fakes.ports import FakeNode
from tests.support.http.credentials import ClosedNode

HERE = "10.0.0.1"
PASSWORD = "a good password"
SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512


@pytest.fixture
def node() -> FakeNode:
    found = FakeNode()
    found.image = replace(found.image, feature_level=SCRAM_LEVEL)
    ClosedNode(found)
    return found


async def put(
    node: FakeNode, name: str = "ann", password: str | None = PASSWORD, **how: Any
) -> None:
    given = None if password is None else Secret(password)
    how = {"is_superuser": None, "keeps_previous": False} | how
    await node.access.service.put_user(name, password=given, **how)


def begin(node: FakeNode, user: str, mechanism: ScramMechanism = SHA_256) -> ScramChallenge:
    return node.access.scram_logins.begin(user, mechanism, HERE)


def sign_in(
    node: FakeNode,
    user: str = "ann",
    password: str = PASSWORD,
    mechanism: ScramMechanism = SHA_256,
    *,
    between: Callable[[], None] = lambda: None,
) -> Caller:
    """Prove a password with the client of kafka-python; ``between``: what happens before the proof arrives."""
    challenge = begin(node, user, mechanism)
    client = ScramClient(user, password, mechanism)
    client.first_message()
    salt = base64.b64encode(challenge.credential.salt).decode()
    answer = (
        f"r={client.nonce.decode()}{challenge.nonce},s={salt},i={challenge.credential.iterations}"
    )
    client.process_server_first_message(answer.encode())
    between()
    login, signature = node.access.scram_logins.finish(
        challenge, client.auth_message, client.client_proof, HERE
    )
    assert signature == client.server_signature
    return node.callers.proved(login, HERE)


async def test_only_a_user_that_an_operator_gave_credentials_signs_in(node: FakeNode) -> None:
    await put(node)
    for mechanism in ScramMechanism:
        with pytest.raises(UnauthenticatedError):
            sign_in(node, mechanism=mechanism)
    await put(node, scram=True)
    for mechanism in ScramMechanism:
        caller = sign_in(node, mechanism=mechanism)
        assert (caller.principal, caller.user, caller.has_password) == ("User:ann", "ann", False)
        with pytest.raises(UnauthenticatedError):
            sign_in(node, password="another password", mechanism=mechanism)


async def test_the_refusals_of_unknown_users_and_wrong_passwords_are_the_same(
    node: FakeNode,
) -> None:
    await put(node, scram=True)
    found = []
    for user in ("ann", "nobody"):
        with pytest.raises(UnauthenticatedError) as refused:
            sign_in(node, user, "a wrong one")
        found.append(refused.value.message)
    assert found[0] == found[1]


async def test_credentials_end_with_their_password_and_with_their_user(node: FakeNode) -> None:
    await put(node, scram=True)

    async def changed(change: Callable[[], Awaitable[object]]) -> None:
        login = begin(node, "ann").login
        assert login is not None
        assert node.callers.proved(login, HERE).user == "ann"
        await change()
        with pytest.raises(UnauthenticatedError, match="have changed"):
            node.callers.proved(login, HERE)

    await changed(lambda: put(node, password="the next password"))
    with pytest.raises(UnauthenticatedError):
        sign_in(node)
    # They are renewed: the new password is good for each mechanism, and for PLAIN.
    for mechanism in ScramMechanism:
        assert sign_in(node, password="the next password", mechanism=mechanism).user == "ann"
    await changed(lambda: put(node, password="a third password", keeps_previous=True))
    with pytest.raises(UnauthenticatedError):
        sign_in(node, password="the next password")
    await changed(lambda: put(node, password=None, scram=False))
    await put(node, password="a third password", scram=True)

    async def made_again() -> None:
        former = node.image.users["ann"].scram
        await node.access.service.delete_user("ann")
        await node.access.service.alter_scram("ann", put=former, removed=())

    # Even with the same credentials, a later user of the name is another one.
    await changed(made_again)


async def test_a_change_of_something_else_leaves_the_credentials(node: FakeNode) -> None:
    await put(node, scram=True)
    before = node.image.users["ann"].scram
    await put(node, password=None, is_superuser=True)
    assert node.image.users["ann"].scram == before
    await put(node, password="the next password", scram=False)
    assert node.image.users["ann"].scram == ()
    # A password alone brings none back.
    await put(node, password="a third password")
    assert node.image.users["ann"].scram == ()


async def test_a_user_that_changes_during_the_exchange_is_not_let_in(node: FakeNode) -> None:
    await put(node, scram=True)
    user = node.image.users["ann"]
    without = node.image.users.set("ann", replace(user, scram=()))

    def remove() -> None:
        node.image = replace(node.image, users=without)

    with pytest.raises(UnauthenticatedError, match="have changed"):
        sign_in(node, between=remove)


async def test_credentials_need_the_password_and_the_level(node: FakeNode) -> None:
    with pytest.raises(InvalidAccessError, match="send it, too"):
        await put(node, password=None, scram=True)
    node.image = replace(node.image, feature_level=SCRAM_LEVEL - 1)
    with pytest.raises(FeatureLevelError, match="level 12"):
        await put(node, scram=True)
    credential = credential_of(SHA_256, PASSWORD, salt=b"salt")
    with pytest.raises(FeatureLevelError, match="level 12"):
        await node.access.service.alter_scram("ann", put=[credential], removed=())
    assert "ann" not in node.image.users


async def test_single_credentials_are_put_and_removed(node: FakeNode) -> None:
    service = node.access.service
    both = [
        credential_of(one, PASSWORD, salt=b"salt", iterations=4096) for one in (SHA_512, SHA_256)
    ]
    await service.alter_scram("bob", put=both, removed=())
    bob = node.image.users["bob"]
    assert (bob.verifiers, bob.is_superuser, bob.scram) == ((), False, (both[1], both[0]))
    assert sign_in(node, "bob", mechanism=SHA_512).user == "bob"
    await service.alter_scram("bob", put=(), removed=[SHA_512])
    assert node.image.users["bob"].scram == (both[1],)
    for name, mechanism in (("bob", SHA_512), ("eve", SHA_256)):
        with pytest.raises(UserNotFoundError, match=mechanism):
            await service.alter_scram(name, put=(), removed=[mechanism])
    assert "eve" not in node.image.users
    # Passwords and rank stay.
    await put(node, "bob", scram=False, is_superuser=True)
    before = node.image.users["bob"]
    await service.alter_scram("bob", put=[both[0]], removed=())
    after = node.image.users["bob"]
    assert (after.verifiers, after.is_superuser) == (before.verifiers, True)
    assert after.scram == (both[0],)


async def test_an_unknown_user_has_a_salt_that_stays_and_is_the_same_on_every_node(
    node: FakeNode,
) -> None:
    await put(node, scram=True)
    shown = begin(node, "nobody").credential
    assert (len(shown.salt), shown.iterations) == (SALT_BYTES, ITERATIONS)
    assert begin(node, "nobody").credential == shown
    assert begin(node, "noone").credential.salt != shown.salt
    assert begin(node, "nobody", SHA_512).credential.salt != shown.salt
    other = FakeNode()
    other.access.scram_logins._spare_key = b"another process"
    other.image = node.image
    assert begin(other, "nobody").credential == shown
    # A user without credentials, and one with those of another mechanism, cannot be told from an unknown one.
    one = credential_of(SHA_512, PASSWORD, salt=b"s" * SALT_BYTES)
    await node.access.service.alter_scram("bob", put=[one], removed=())
    before = begin(node, "bob").credential
    await node.access.service.delete_user("bob")
    assert begin(node, "bob").credential == before
    # A changed password does not change the salts of others.
    await put(node, password="the next password")
    assert begin(node, "nobody").credential == shown


async def test_unknown_users_look_like_those_that_exist(node: FakeNode) -> None:
    shapes = {(4096, 24), (8192, 40)}
    for number, (iterations, size) in enumerate(shapes):
        one = credential_of(SHA_256, PASSWORD, salt=bytes(size), iterations=iterations)
        await node.access.service.alter_scram(f"user{number}", put=[one], removed=())
    found = [begin(node, f"nobody{number}").credential for number in range(50)]
    assert {(one.iterations, len(one.salt)) for one in found} == shapes


async def test_the_key_of_the_decoys_is_made_once(node: FakeNode) -> None:
    assert node.image.scram_decoy_key == b""
    await put(node, scram=True)
    key = node.image.scram_decoy_key
    assert len(key) == 32
    await put(node, "bob", scram=True)
    assert node.image.scram_decoy_key == key


async def test_wrong_proofs_count_with_wrong_passwords(node: FakeNode) -> None:
    await put(node, scram=True)
    begun = [begin(node, "ann") for _ in range(WRONG_AT_ONCE + 10)]
    refused = 0
    for challenge in begun:
        # All exchanges began before the first wrong proof: the limit holds for their ends, too.
        try:
            node.access.scram_logins.finish(challenge, b"any", bytes(32), HERE)
        except TooManyRequestsError:
            refused += 1
        except UnauthenticatedError:
            pass
    assert refused == 10
    for call in (lambda: begin(node, "ann"), lambda: begin(node, "nobody")):
        with pytest.raises(TooManyRequestsError, match="too many wrong passwords"):
            call()
    assert node.access.passwords.refusal(HERE) is not None
    assert node.access.passwords.refusal("10.0.0.2") is None
    assert node.access.scram_logins.begin("ann", SHA_256, "10.0.0.2").login is not None
    node.access.clock.ms += 2_000
    node.access.heard_ms = node.access.clock.ms
    assert sign_in(node).user == "ann"


async def test_a_node_that_hears_no_quorum_starts_no_exchange(node: FakeNode) -> None:
    await put(node, scram=True)
    node.access.clock.ms += SILENCE_MS_MAX + 1
    with pytest.raises(NotReadyError):
        begin(node, "ann")


async def test_an_open_cluster_lets_in_who_proves_a_password(node: FakeNode) -> None:
    await put(node, scram=True)
    await node.access.service.set_mode(AccessMode.OFF)
    assert sign_in(node) is ANYBODY
    with pytest.raises(UnauthenticatedError):
        sign_in(node, password="a wrong one")
