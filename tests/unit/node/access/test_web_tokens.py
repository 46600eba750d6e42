"""Tokens of an issuer: who they let in, and every way to forge one."""

import hashlib
import hmac

import pytest
from cryptography.hazmat.primitives import serialization

from http_api.access.callers import OPEN
from milena.model.access import AccessMode, Operation, ResourceType
from milena.model.errors import NotReadyError, TooManyRequestsError, UnauthenticatedError
from node.access.issuer_keys import ASK_MS, KEPT_MS_MAX, REFRESH_MS
from node.access.passwords import WRONG_AT_ONCE
from node.access.web_tokens import LEEWAY_S, TOKEN_LENGTH_MAX
from raft_meta.machine.commands import AlterAcls, SetAccessMode
from tests.support.fakes.ports import FakeNode
from tests.support.http.credentials import Allowed, ClosedNode, entry
from tests.support.http.issuer import (
    ALGORITHMS,
    AUDIENCE,
    ISSUER,
    MemoryIssuer,
    document,
    part,
    private_key,
    public_jwk,
)

HERE = "10.0.0.1"
READ = Allowed("READ", "TOPIC", "orders")


@pytest.fixture
def node():
    return FakeNode()


@pytest.fixture
def closed(node):
    return ClosedNode(node)


@pytest.fixture
async def issuer(node, closed):
    del closed
    found = MemoryIssuer(node)
    await found.keys.refresh()
    return found


def ask(node, token: str):
    return node.callers.known(f"Bearer {token}", HERE)


def refused(node, token: str) -> str:
    with pytest.raises(UnauthenticatedError) as raised:
        ask(node, token)
    return raised.value.message


def allow(closed, principal: str, what: Allowed = READ, **options) -> None:
    closed.store.apply(AlterAcls(added=(entry(principal, what, **options),), removed=()))


def may_read(caller) -> bool:
    return caller.may(Operation.READ, ResourceType.TOPIC, "orders")


def pass_time(node, ms: int) -> None:
    node.access.clock.ms += ms
    node.access.heard_ms = node.access.clock.ms


@pytest.mark.parametrize("key", ALGORITHMS)
async def test_a_token_of_any_kind_of_key_names_its_user(node, closed, issuer, key):
    allow(closed, "User:oidc:ann")
    caller = ask(node, issuer.token(key))
    assert (caller.principal, caller.user, caller.is_superuser) == ("User:oidc:ann", None, False)
    assert may_read(caller)


async def test_a_users_name_is_not_the_issuers_to_give(node, closed, issuer):
    closed.user("ann", READ)
    for name in ("ann", "root"):
        caller = ask(node, issuer.token(sub=name))
        assert (caller.user, caller.is_superuser) == (None, False)
        assert not may_read(caller)


@pytest.mark.parametrize(
    "name", ["a b", "", "ann\n", "ünï", "a*", "x" * 251, 7, None, ["ann"], {"a": 1}, True]
)
async def test_a_name_that_is_none_is_refused(node, issuer, name):
    token = issuer.token(tenant=name)
    issuer.tokens.user_claim = "tenant"
    assert "tenant" in refused(node, token)


async def test_the_longest_name_is_taken(node, issuer):
    assert ask(node, issuer.token(sub="x" * 250)).principal == "User:oidc:" + "x" * 250


async def test_groups_count(node, closed, issuer):
    token = issuer.token(groups=["readers", "writers", "readers", "of no entry, ever"])
    assert not may_read(ask(node, token))
    allow(closed, "Group:readers")
    assert may_read(ask(node, token))
    assert not may_read(ask(node, issuer.token(groups=["others"])))
    assert not may_read(ask(node, issuer.token()))
    assert may_read(ask(node, issuer.token(groups="readers")))
    allow(closed, "Group:writers", permission="DENY")
    assert not may_read(ask(node, token))


async def test_a_groups_entry_may_depend_on_the_address(node, closed, issuer):
    allow(closed, "Group:readers", host="10.0.0.9")
    token = issuer.token(groups=["readers"])
    assert (ask(node, token).host, may_read(ask(node, token))) == (HERE, False)
    assert may_read(node.callers.known(f"Bearer {token}", "10.0.0.9"))


@pytest.mark.parametrize("groups", [7, {"a": 1}, [1], [["a"]], [None], True])
async def test_groups_that_are_none_are_refused(node, issuer, groups):
    assert "groups is not a list of texts" in refused(node, issuer.token(groups=groups))


async def test_groups_count_only_where_a_claim_is_set(node, closed):
    issuer = MemoryIssuer(node, groups_claim=None)
    await issuer.keys.refresh()
    allow(closed, "Group:readers")
    assert not may_read(ask(node, issuer.token(groups=["readers"])))


# -- forged ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "", None, 7, "HS256", "RS512", "ES256"])
async def test_another_algorithm_than_the_keys_is_refused(node, issuer, alg):
    header = {"typ": "JWT", "kid": "rsa", **({} if alg is None else {"alg": alg})}
    assert "its key is one of RS256" in refused(node, issuer.unsigned(header))


@pytest.mark.parametrize("of", ["pem", "der", "modulus", "document", "empty"])
async def test_the_public_key_is_no_secret_to_sign_with(node, issuer, of):
    public = private_key("rsa").public_key()
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    secret = {
        "pem": public.public_bytes(serialization.Encoding.PEM, form),
        "der": public.public_bytes(serialization.Encoding.DER, form),
        "modulus": str(public_jwk("rsa")["n"]).encode(),
        "document": issuer.document,
        "empty": b"",
    }[of]
    signed = f"{part({'alg': 'HS256', 'kid': 'rsa'})}.{part(issuer.claims())}"
    signature = part(hmac.digest(secret, signed.encode(), hashlib.sha256))
    assert "its key is one of RS256" in refused(node, f"{signed}.{signature}")


@pytest.mark.parametrize("key", ALGORITHMS)
async def test_another_key_of_the_same_id_is_refused(node, issuer, key):
    assert "its signature is not one of its key" in refused(
        node, issuer.token(f"{key}/2", header={"kid": key})
    )


async def test_a_key_of_another_kind_under_an_id_is_refused(node, issuer):
    assert "its key is one of RS256" in refused(node, issuer.token("p256", header={"kid": "rsa"}))


@pytest.mark.parametrize(
    "pointing",
    [
        {"jwk": public_jwk("rsa/2")},
        {"jku": "https://evil.example.org/keys"},
        {"x5u": "https://evil.example.org/cert"},
        {"x5c": ["MIIB"]},
    ],
)
async def test_a_key_that_comes_with_a_token_is_not_looked_at(node, issuer, pointing):
    assert "its signature is not one of its key" in refused(
        node, issuer.token("rsa/2", header={"kid": "rsa", **pointing})
    )
    # What points elsewhere changes nothing about a good one.
    assert ask(node, issuer.token(header=pointing)).principal == "User:oidc:ann"
    assert issuer.asked_count == 1


@pytest.mark.parametrize("crit", [["exp"], ["b64"], [], "exp", None])
async def test_what_must_be_understood_is_refused(node, issuer, crit):
    forged = issuer.token().split(".")
    header = part({"alg": "RS256", "kid": "rsa", "crit": crit, "b64": False})
    assert "crit" in refused(node, ".".join([header, *forged[1:]]))


@pytest.mark.parametrize("where", [0, 1, 2])
async def test_any_other_byte_is_another_token(node, issuer, where):
    parts = issuer.token().split(".")
    parts[where] = parts[where][:20] + ("A" if parts[where][20] != "A" else "B") + parts[where][21:]
    refused(node, ".".join(parts))


async def test_a_signature_does_not_move_to_other_claims(node, issuer):
    one, other = issuer.token(), issuer.unsigned({"alg": "RS256", "kid": "rsa"}, sub="root")
    forged = ".".join([*other.split(".")[:2], one.rsplit(".", 1)[1]])
    assert "its signature is not one of its key" in refused(node, forged)


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"iss": "https://evil.example.org"}, f"its iss is not {ISSUER}"),
        ({"iss": ISSUER + "/"}, "its iss is not"),
        ({"iss": [ISSUER]}, "ss"),
        ({"iss": None}, '"iss"'),
        ({"aud": "another"}, f"its aud has no {AUDIENCE}"),
        ({"aud": ["another", "milena2"]}, "its aud has no"),
        ({"aud": [AUDIENCE, 7]}, "aud"),
        ({"aud": {AUDIENCE: 1}}, "aud"),
        ({"aud": []}, "aud"),
        ({"aud": None}, '"aud"'),
        ({"sub": None}, '"sub"'),
        ({"sub": 7}, "ubject"),
        ({"exp": None}, '"exp"'),
        ({"exp": "tomorrow"}, "exp is not a number"),
        ({"exp": True}, "exp is not a number"),
        ({"exp": [1]}, "exp is not a number"),
        ({"exp": -1}, "exp is not a time"),
        ({"exp": float("inf")}, "exp is not a time"),
        ({"exp": float("nan")}, "exp is not a time"),
        ({"exp": 10**400}, "exp is not a time"),
        ({"exp": 1_000}, "it expired"),
        ({"nbf": 1 << 39}, "its nbf is in the future"),
        ({"nbf": "x"}, "nbf is not a number"),
        ({"iat": 1 << 39}, "its iat is in the future"),
    ],
)
async def test_claims_that_are_not_for_us_are_refused(node, issuer, claims, said):
    assert said in refused(node, issuer.token(**claims))


async def test_an_audience_among_several_is_enough(node, issuer):
    assert ask(node, issuer.token(aud=["another", AUDIENCE]))


@pytest.mark.parametrize(
    "text",
    [
        "..",
        "a.b.c",
        "!.!.!",
        "ey.ey.ey",
        f"{part([])}.e30.e30",
        f"{part(b'{')}.e30.e30",
        f"{part(b'[' * 5000)}.e30.e30",
        f"{part(b'{' + b'9' * 5000 + b':1}')}.e30.e30",
        f"{part({'alg': 'RS256', 'kid': 'rsa'})}..",
        f"{part({'alg': 'RS256', 'kid': 'rsa'})}.{part(b'[' * 5000)}.",
        f"{part({'alg': 'RS256', 'kid': ['rsa']})}.e30.e30",
        f"{part({'alg': 'RS256', 'kid': 'rsa'})}.e30=.e30",
        f"{part({'alg': 'RS256', 'kid': 'rsa'})}.e30.e30\n",
        "ey." + "x" * TOKEN_LENGTH_MAX + ".x",
        f"{part({'alg': 'RS256', 'kid': 'rsa'})}.\udcff.e30",
    ],
)
async def test_what_is_no_token_is_refused(node, issuer, text):
    refused(node, text)
    assert issuer.asked_count == 1


async def test_a_token_that_is_signed_and_no_object_is_refused(node, issuer):
    signed = f"{part({'alg': 'EdDSA', 'kid': 'ed25519'})}.{part([1])}"
    signature = private_key("ed25519").sign(signed.encode())
    refused(node, f"{signed}.{part(signature)}")


async def test_a_token_of_the_cluster_is_still_one(node, closed, issuer):
    closed.user("ann", READ)
    caller = node.callers.known(closed.token("ann")["Authorization"], HERE)
    assert (caller.user, caller.keys_version) == ("ann", 0)
    assert "not a token of this cluster" in refused(node, "mln_a.b.c")
    assert "not a token of this cluster" in refused(node, "opaque")
    assert issuer.asked_count == 1


async def test_a_node_that_trusts_no_issuer_takes_no_tokens_of_one(node, closed):
    found = MemoryIssuer(node)
    plain = FakeNode()
    ClosedNode(plain)
    assert "not a token of this cluster" in refused(plain, found.token())


async def test_an_open_cluster_looks_at_no_token(node, closed, issuer):
    closed.store.apply(SetAccessMode(access_mode=AccessMode.OFF))
    assert ask(node, "x.y.z").version == OPEN


async def test_whose_signatures_are_wrong_waits_and_nobody_else(node, closed, issuer):
    known, fresh = issuer.token(), issuer.token(sub="bob")
    caller = ask(node, known)
    for _ in range(100):
        refused(node, issuer.token(exp=1_000))
    for _ in range(WRONG_AT_ONCE):
        refused(node, issuer.token("rsa/2", header={"kid": "rsa"}))
    for token in (fresh, issuer.token("rsa/2", header={"kid": "rsa"})):
        with pytest.raises(TooManyRequestsError, match="too many wrong signatures came from"):
            ask(node, token)
    assert ask(node, known) is caller
    allow(closed, "User:oidc:ann")
    assert may_read(ask(node, known))
    assert node.callers.known(f"Bearer {fresh}", "10.0.0.2").principal == "User:oidc:bob"
    pass_time(node, 1_000)
    assert ask(node, fresh).principal == "User:oidc:bob"


# -- for how long ------------------------------------------------------------------------------------


async def test_a_token_is_looked_at_once_and_good_until_its_end(node, closed, issuer, monkeypatch):
    token = issuer.token(exp=issuer.clock.wall_ms() // 1000 + 10)
    caller = ask(node, token)
    with monkeypatch.context() as patched:
        patched.setattr(issuer.tokens, "verify", None)
        assert ask(node, token) is caller
    pass_time(node, (10 + LEEWAY_S) * 1000 - 1)
    assert node.callers.holds(caller)
    pass_time(node, 1)
    assert not node.callers.holds(caller)
    assert "it expired 30 s ago" in refused(node, token)


async def test_clocks_may_differ_by_a_little(node, issuer):
    now_s = issuer.clock.wall_ms() // 1000
    assert ask(node, issuer.token(nbf=now_s + LEEWAY_S, iat=now_s + LEEWAY_S))
    assert "nbf" in refused(node, issuer.token(nbf=now_s + LEEWAY_S + 1))
    assert "iat" in refused(node, issuer.token(iat=now_s + LEEWAY_S + 1))


async def test_a_change_of_access_is_seen_by_those_who_are_known(node, closed, issuer):
    token = issuer.token()
    caller = ask(node, token)
    allow(closed, "User:oidc:ann")
    assert not node.callers.holds(caller)
    assert may_read(ask(node, token))


async def test_an_unknown_key_is_asked_for_and_seldom(node, issuer):
    token = issuer.token("rsa/2")
    assert "no such key: kid 'rsa/2'" in refused(node, token)
    pass_time(node, ASK_MS)
    assert ask(node, token) is None
    issuer.document = document(public_jwk("rsa"), public_jwk("rsa/2"))
    caller = await node.callers.identify(f"Bearer {token}", HERE)
    assert (caller.principal, issuer.asked_count) == ("User:oidc:ann", 2)
    # Strangers' keys are not asked for over and over.
    for number in range(100):
        refused(node, issuer.token(header={"kid": f"stranger{number}"}))
    assert issuer.asked_count == 2


async def test_a_key_that_is_not_there_after_all_is_refused(node, issuer):
    pass_time(node, ASK_MS)
    with pytest.raises(UnauthenticatedError, match="no such key"):
        await node.callers.identify(f"Bearer {issuer.token('rsa/2')}", HERE)


async def test_a_token_without_kid_asks_for_nothing_where_there_are_several(node, issuer):
    pass_time(node, ASK_MS)
    header, *others = issuer.token().split(".")
    assert "several keys" in refused(node, ".".join([part({"alg": "RS256"}), *others]))
    assert header


async def test_a_key_that_its_issuer_took_away_lets_nobody_in(node, issuer):
    token = issuer.token()
    caller = ask(node, token)
    await issuer.keys.refresh()
    assert node.callers.holds(caller)
    issuer.document = document(public_jwk("p256"))
    await issuer.keys.refresh()
    assert not node.callers.holds(caller)
    assert "no such key" in refused(node, token)


async def test_the_last_good_keys_are_kept_for_a_day(node, issuer, caplog):
    lasting = issuer.token(exp=issuer.clock.wall_ms() // 1000 + 10**6)
    caller = ask(node, lasting)
    issuer.failure = "it answered 503"
    for _ in range(3):
        pass_time(node, ASK_MS)
        await issuer.keys.refresh()
    assert sum("it answered 503" in line for line in caplog.messages) == 1
    pass_time(node, KEPT_MS_MAX - 3 * ASK_MS)
    await issuer.keys.refresh()
    assert node.callers.holds(caller)
    pass_time(node, 1)
    await issuer.keys.refresh()
    assert not node.callers.holds(caller)
    with pytest.raises(NotReadyError, match="cannot be read: it answered 503"):
        ask(node, lasting)
    issuer.failure = ""
    await issuer.keys.refresh()
    assert ask(node, lasting)


async def test_a_document_that_is_damaged_does_not_replace_a_good_one(node, issuer):
    issuer.document = b'{"keys": []}'
    await issuer.keys.refresh()
    assert "no key in it" in issuer.keys.failure
    assert ask(node, issuer.token())


async def test_a_node_that_has_no_keys_yet_waits_for_them(node, closed):
    issuer = MemoryIssuer(node)
    token = issuer.token()
    assert ask(node, token) is None
    assert (await node.callers.identify(f"Bearer {token}", HERE)).principal == "User:oidc:ann"


async def test_keys_are_read_again_as_long_as_the_node_runs(node, issuer):
    slept = []

    async def sleep(ms):
        slept.append(ms)
        issuer.failure = "" if issuer.failure else "gone"
        if len(slept) == 4:
            raise EOFError

    issuer.clock.sleep = sleep
    with pytest.raises(EOFError):
        await issuer.keys.run()
    assert slept == [REFRESH_MS, ASK_MS, REFRESH_MS, ASK_MS]
    assert issuer.asked_count == 5


async def test_nothing_shows_a_token(node, issuer, caplog):
    caplog.set_level("DEBUG")
    token = issuer.token()
    caller = ask(node, token)
    shown = [refused(node, token[:-8] + "AAAAAAAA"), repr(caller), repr(vars(node.callers))]
    assert not [text for text in [*shown, *caplog.messages] if token[40:60] in text]
