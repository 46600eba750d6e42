"""Who a client is: what may be said together, what is sent where, and what is never shown."""

import base64
import pickle
from types import SimpleNamespace

import pytest
from aiohttp import web

from milena.cluster.admin import AdminClient
from milena.cluster.credentials import (
    ANONYMOUS,
    NAMES,
    VARIABLES,
    Credentials,
    nearer,
    texts_of,
)
from milena.cluster.routing import NodeRoutes
from milena.errors import (
    BadCredentialsError,
    CredentialsRefusedError,
    NotPermittedError,
)
from milena.model.secret import Secret
from node.config.sources import FOREIGN_VARIABLES
from tests.support.http.http_server import serving

CANARY = "canary-of-a-secret"


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"token": Secret("a"), "token_file": "f"}, "token and token_file"),
        ({"token": Secret("a"), "user": "u"}, "token and user"),
        ({"user": "u"}, "give password_file or password"),
        ({"password_file": "f"}, "give user"),
        ({"user": "u:v", "password_file": "f"}, "no colon"),
        ({"user": "u", "password": Secret("a\nb")}, "one line"),
        ({"token": Secret("two words")}, "one word"),
        ({"key": "f"}, "give cert"),
        ({"client_id": "two words"}, "client_id: 'two words'"),
        ({"client_id": ""}, "client_id"),
        ({"client_id": "a\r\nb: c"}, "client_id"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(parts, told):
    with pytest.raises(ValueError, match=told):
        Credentials(**parts)


@pytest.mark.parametrize("name", ["token", "password"])
def test_a_bare_secret_is_refused(name):
    with pytest.raises(TypeError, match=f"{name}=Secret"):
        Credentials(**{name: CANARY})


def test_nothing_shows_a_secret():
    who = Credentials(user="alice", password=Secret(CANARY))
    header = who.authorization()
    assert CANARY not in f"{who!r} {who} {header!r} {header}"
    assert header.reveal() == "Basic " + base64.b64encode(f"alice:{CANARY}".encode()).decode()
    assert pickle.loads(pickle.dumps(who)) == who


def test_what_is_nearer_replaces_what_contradicts_it():
    before = {"user": "u", "password": "p", "ca": "c", "cert": "x", "key": "y"}
    tls = {"ca": "c", "cert": "x", "key": "y"}
    assert nearer({}, before) == before
    assert nearer({"token_file": "t"}, before) == {**tls, "token_file": "t"}
    assert nearer({"password_file": "f"}, before) == {**tls, "user": "u", "password_file": "f"}
    assert nearer({"cert": "z"}, before) == {"user": "u", "password": "p", "ca": "c", "cert": "z"}
    assert nearer({"user": "v"}, {"token": "t", "password": "p"}) == {"user": "v", "password": "p"}


def test_variables_have_the_names_of_the_parts_and_nodes_let_them_be():
    said = texts_of({"MILENA_TOKEN_FILE": "t", "MILENA_CA": "", "MILENA_OTHER": "x"})
    assert said == {"token_file": "t"}
    assert tuple(VARIABLES) == NAMES
    assert set(VARIABLES.values()) <= FOREIGN_VARIABLES


@pytest.mark.parametrize("content", [b"", b"two words", b"\xff", b"x" * 5000, b"a\nb"])
def test_a_file_that_holds_no_token_is_told_without_what_it_holds(tmp_path, content):
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(BadCredentialsError) as caught:
        Credentials(token_file=file).authorization()
    assert str(file) in caught.value.message
    assert not content or content.decode("latin-1") not in caught.value.message


def test_a_certificate_that_is_none_is_told(tmp_path):
    file = tmp_path / "cert.pem"
    file.write_text(CANARY)
    with pytest.raises(BadCredentialsError, match="cert and key: cannot use"):
        Credentials(cert=file).tls_context()
    with pytest.raises(BadCredentialsError, match="ca: cannot use"):
        Credentials(ca=tmp_path / "none").tls_context()


# -- what nodes get ------------------------------------------------------------------------------------


@pytest.fixture
async def node():
    """A node that lets in who shows ``node.wanted``; ``node.seen`` is what it was shown."""

    async def answer(request):
        shown = request.headers.get("Authorization")
        found.seen.append(shown)
        found.client_ids.append(request.headers.get("Milena-Client-Id"))
        if shown == found.wanted:
            return web.json_response(["orders"])
        status = 403 if shown == "Bearer known" else 401
        told = {"error_code": status * 100 + 1, "message": "not you"}
        return web.json_response(told, status=status)

    app = web.Application()
    app.router.add_get("/topics", answer)
    found = SimpleNamespace(wanted="another", seen=[], client_ids=[])
    async with serving(app) as found.url:
        yield found


async def test_each_request_says_who_asks(node):
    node.wanted = "Basic " + base64.b64encode(b"alice:p w").decode()
    who = Credentials(user="alice", password=Secret("p w"))
    async with AdminClient(node.url, credentials=who) as admin:
        assert await admin.topic_names() == await admin.topic_names() == ["orders"]
    assert node.seen == [node.wanted] * 2


async def test_each_request_says_what_the_program_calls_itself(node):
    node.wanted = None
    async with AdminClient(node.url, credentials=Credentials(client_id="billing")) as admin:
        await admin.topic_names()
    async with AdminClient(node.url) as admin:
        await admin.topic_names()
    assert node.client_ids == ["billing", None]


async def test_a_token_that_was_renewed_in_its_file_is_read_again(node, tmp_path):
    file = tmp_path / "token"
    file.write_text("old\n")
    node.wanted = "Bearer old"
    async with AdminClient(node.url, credentials=Credentials(token_file=file)) as admin:
        await admin.topic_names()
        node.wanted = "Bearer new"
        with pytest.raises(CredentialsRefusedError, match=f"token in {file} is unknown"):
            await admin.topic_names()
        file.write_text("new\n")
        assert await admin.topic_names() == ["orders"]
    # What is in the file is sent once more, and only if it is another one.
    assert node.seen == ["Bearer old", "Bearer old", "Bearer old", "Bearer new"]


@pytest.mark.parametrize(
    ("who", "error", "told"),
    [
        (ANONYMOUS, CredentialsRefusedError, "does not say who it is"),
        (
            Credentials(token=Secret(CANARY)),
            CredentialsRefusedError,
            "expired, revoked or of another cluster; give another token_file, or user and password_file",
        ),
        (
            Credentials(user="bob", password=Secret(CANARY)),
            CredentialsRefusedError,
            "asked by user 'bob'; give another user and password_file, or token_file",
        ),
        (Credentials(token=Secret("known")), NotPermittedError, "asked by a token"),
    ],
)
async def test_a_refusal_says_what_to_change_and_no_secret(node, who, error, told):
    async with AdminClient(node.url, credentials=who) as admin:
        with pytest.raises(error, match=told) as caught:
            await admin.topic_names()
    assert CANARY not in f"{caught.value.message} {caught.value!r}"


# -- where it goes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seeds", "learnt", "is_asked"),
    [
        ("http://a:1", "http://a:2", True),
        ("http://a:1", "http://b:1", False),
        ("http://a:1", "https://b:1", True),
        ("https://a:1", "https://b:1", True),
        ("https://a:1", "http://a:1", False),
        ("http://127.0.0.1:1", "http://127.0.0.2:1", True),
        ("http://a:1", "http://u:p@a:1", False),
    ],
)
def test_credentials_go_to_checked_hosts_and_to_those_that_were_named(seeds, learnt, is_asked):
    routes = NodeRoutes(seeds, is_guarded=True)
    routes.learn([learnt])
    assert (learnt in routes.order(None, 0)) == is_asked
    assert routes.order(learnt, 0)[0] == (learnt if is_asked else seeds)
    assert bool(routes.left_out) != is_asked
    assert "u:p" not in str(routes.left_out)


@pytest.mark.parametrize(
    ("who", "is_guarded"),
    [
        (ANONYMOUS, False),
        (Credentials(client_id="billing"), False),
        (Credentials(ca="ca.pem"), True),
        (Credentials(token_file="token", client_id="billing"), True),
    ],
)
def test_a_client_id_alone_may_go_to_any_node(who, is_guarded):
    assert who.is_guarded == is_guarded


def test_who_shows_nothing_asks_any_node():
    routes = NodeRoutes("https://a:1")
    routes.learn(["http://b:1"])
    assert "http://b:1" in routes.order(None, 0)
    assert routes.left_out == ()


def test_a_user_in_a_url_is_refused_and_not_shown():
    with pytest.raises(ValueError, match="give credentials") as caught:
        AdminClient(f"http://bob:{CANARY}@host:1")
    assert CANARY not in str(caught.value)
