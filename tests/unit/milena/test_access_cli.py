"""``milena access`` and ``milena acls`` against a node on paper: what they print, ask and refuse."""

import io
import json

import pytest

from tests.support.command_lines import runner
from tests.support.fakes.api import FakeApi
from tests.support.http.http_server import serving


class Terminal(io.StringIO):
    """Standard input at which somebody sits."""

    def isatty(self):
        return True


@pytest.fixture
async def api():
    fake = FakeApi()
    async with serving(fake.app()) as fake.url:
        yield fake


@pytest.fixture
def milena(api, capsys):
    return runner(api.url, capsys)


# -- the mode ----------------------------------------------------------------------------------------


async def test_access_shows_the_mode_and_who_you_are(api, milena):
    assert await milena("access") == (0, "mode off\nyou are User:ANONYMOUS\n", "")
    api.access.be("alice", token_id="0abc1234", is_superuser=True)
    _, out, _ = await milena("access")
    assert out == "mode off\nyou are User:alice, a superuser, by token 0abc1234\n"
    code, out, _ = await milena("access", "--json")
    assert code == 0
    assert json.loads(out) == {
        "mode": "off",
        "version": 7,
        "principal": "User:alice",
        "user": "alice",
        "token_id": "0abc1234",
        "is_superuser": True,
    }


async def test_the_mode_is_set(api, milena):
    code, _, err = await milena("access", "set", "required", "--yes")
    assert (code, err) == (1, "milena: There is no superuser. Make one.\n")
    api.access.add_user("root", "x", is_superuser=True)
    code, out, _ = await milena("access", "set", "required", "--yes")
    assert (code, out) == (0, "mode required\nyou are User:ANONYMOUS\n")
    code, out, _ = await milena("access", "set", "optional", "--json")
    assert (code, json.loads(out)["mode"]) == (0, "optional")
    assert api.access.mode == "optional"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("set",), "Missing argument"),
        (("set", "on"), "'on' is not one of 'off', 'optional', 'required'"),
        (("--json", "set", "off"), "say --json after set"),
        (("show",), "No such command 'show'"),
    ],
)
async def test_what_is_no_mode_is_told(api, milena, words, told):
    code, _, err = await milena("access", *words)
    assert code == 64
    assert told in err
    assert api.access.asked == []


@pytest.mark.parametrize(
    ("status", "said", "code"),
    [
        (401, "it token_file, or user and password_file", 1),
        (403, "asked by no certain user", 1),
    ],
)
@pytest.mark.parametrize(
    "words",
    [
        ("access",),
        ("users", "list"),
        ("tokens", "list"),
        ("acls", "list"),
        ("acls", "add", "User:a", "--allow", "READ", "--topic", "t"),
    ],
)
async def test_who_may_not_is_told(api, milena, words, status, said, code):
    api.answer = (status, {"error_code": status * 100 + 1, "message": "Not you."})
    found, out, err = await milena(*words)
    assert (found, out) == (code, "")
    assert err.startswith("milena: Not you; ")
    assert said in err


# -- entries -----------------------------------------------------------------------------------------


async def test_entries_have_a_line_each(api, milena):
    assert await milena("acls", "list") == (0, "", "no entries\n")
    api.access.add_entry("User:bob", "WRITE", "orders-", pattern_type="PREFIXED")
    api.access.add_entry("User:alice", "READ", "orders", permission="DENY", host="10.0.0.1")
    code, out, _ = await milena("acls", "list")
    assert code == 0
    assert out.splitlines() == [
        "PRINCIPAL   PERMISSION  OPERATION  RESOURCE  NAME     PATTERN   HOST",
        "User:alice  DENY        READ       TOPIC     orders   LITERAL   10.0.0.1",
        "User:bob    ALLOW       WRITE      TOPIC     orders-  PREFIXED  *",
    ]
    _, out, _ = await milena("acls", "list", "User:bob", "--json")
    assert json.loads(out) == [
        {
            "resource_type": "TOPIC",
            "resource_name": "orders-",
            "pattern_type": "PREFIXED",
            "principal": "User:bob",
            "host": "*",
            "operation": "WRITE",
            "permission": "ALLOW",
        }
    ]


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ((), [{}]),
        (("User:*",), [{"principal": "User:*"}]),
        (("--host", "10.0.0.1"), [{"host": "10.0.0.1"}]),
        (("--prefixed",), [{"pattern_type": "PREFIXED"}]),
        (("--deny", "all"), [{"permission": "DENY", "operation": "ALL"}]),
        (
            ("--cluster",),
            [
                {
                    "resource_type": "CLUSTER",
                    "resource_name": "kafka-cluster",
                    "pattern_type": "LITERAL",
                }
            ],
        ),
        (
            ("--topic", "a", "--transactional-id", "b", "--prefixed"),
            [
                {"resource_type": "TOPIC", "resource_name": "a", "pattern_type": "PREFIXED"},
                {
                    "resource_type": "TRANSACTIONAL_ID",
                    "resource_name": "b",
                    "pattern_type": "PREFIXED",
                },
            ],
        ),
    ],
)
async def test_the_same_words_say_which_entries_are_listed_and_removed(api, milena, words, asked):
    code, _, _ = await milena("acls", "list", *words)
    assert code == 0
    assert [query or {} for _, _, query in api.access.asked] == asked
    del api.access.asked[:]
    if words:
        code, _, _ = await milena("acls", "remove", *words, "--yes")
        assert code == 0
        assert [(method, query) for method, _, query in api.access.asked] == [
            ("DELETE", query) for query in asked
        ]


async def test_entries_are_added_together(api, milena):
    code, out, err = await milena(
        "acls", "add", "User:alice", "--allow", "READ,DESCRIBE", "--deny", "delete",
        "--topic", "orders-", "--group", "g-", "--prefixed", "--host", "10.0.0.1",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "added ALLOW User:alice READ TOPIC orders-* from host 10.0.0.1",
        "added ALLOW User:alice DESCRIBE TOPIC orders-* from host 10.0.0.1",
        "added DENY User:alice DELETE TOPIC orders-* from host 10.0.0.1",
        "added ALLOW User:alice READ GROUP g-* from host 10.0.0.1",
        "added ALLOW User:alice DESCRIBE GROUP g-* from host 10.0.0.1",
        "added DENY User:alice DELETE GROUP g-* from host 10.0.0.1",
    ]
    posts = [asked for asked in api.access.asked if asked[0] == "POST"]
    assert [(path, len(body["data"])) for _, path, body in posts] == [
        ("/v3/clusters/c1/acls:batch", 6)
    ]
    code, out, _ = await milena("acls", "add", "User:*", "--allow", "ALTER", "--cluster", "--json")
    assert code == 0
    assert json.loads(out) == [
        {
            "resource_type": "CLUSTER",
            "resource_name": "kafka-cluster",
            "pattern_type": "LITERAL",
            "principal": "User:*",
            "host": "*",
            "operation": "ALTER",
            "permission": "ALLOW",
        }
    ]


async def test_what_was_added_is_removed_by_the_same_words_and_nothing_else(api, milena):
    words = ("User:alice", "--allow", "READ", "--topic", "orders")
    await milena("acls", "add", *words)
    await milena("acls", "add", *words, "--prefixed")
    code, out, _ = await milena("acls", "remove", *words, "--yes")
    assert (code, out) == (0, "removed ALLOW User:alice READ TOPIC orders from any host\n")
    assert [entry["pattern_type"] for entry in api.access.entries] == ["PREFIXED"]
    assert await milena("acls", "remove", *words, "--yes") == (0, "", "no entries\n")
    _, out, _ = await milena("acls", "remove", *words, "--prefixed", "--yes", "--json")
    told = json.loads(out)
    assert (told["dry_run"], [entry["resource_name"] for entry in told["acls"]]) == (
        False,
        ["orders"],
    )
    assert api.access.entries == []


async def test_what_is_named_twice_is_one(api, milena):
    words = (
        "User:alice",
        "--allow",
        "READ,READ",
        "--allow",
        "READ",
        "--topic",
        "t",
        "--topic",
        "t",
    )
    code, out, _ = await milena("acls", "add", *words)
    assert (code, out) == (0, "added ALLOW User:alice READ TOPIC t from any host\n")
    _, out, _ = await milena("acls", "remove", *words, "--dry-run")
    assert out == "would remove ALLOW User:alice READ TOPIC t from any host\n"


async def test_a_dry_run_only_says_what_would_go(api, milena):
    api.access.add_entry("User:alice", "READ", "orders")
    code, out, _ = await milena("acls", "remove", "User:alice", "--dry-run")
    assert (code, out) == (0, "would remove ALLOW User:alice READ TOPIC orders from any host\n")
    _, out, _ = await milena("acls", "remove", "User:alice", "--dry-run", "--json")
    assert (json.loads(out)["dry_run"], len(json.loads(out)["acls"])) == (True, 1)
    assert {method for method, *_ in api.access.asked} == {"GET"}
    assert len(api.access.entries) == 1


@pytest.mark.parametrize(("answer", "left"), [("n\n", 1), ("y\n", 0)])
async def test_who_is_asked_sees_what_would_go(api, milena, monkeypatch, answer, left):
    api.access.add_entry("User:alice", "READ", "orders")
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    code, out, err = await milena("acls", "remove", "User:alice")
    assert "User:alice  ALLOW       READ       TOPIC     orders" in err
    assert "Remove 1 of the entries?" in err
    assert (code, bool(out)) == ((1, False) if left else (0, True))
    assert len(api.access.entries) == left


async def test_nothing_is_removed_where_nobody_can_be_asked(api, milena):
    api.access.add_entry("User:alice", "READ", "orders")
    code, _, err = await milena("acls", "remove", "User:alice")
    assert code == 64
    assert "say --yes" in err
    assert len(api.access.entries) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("add",), "Missing argument 'PRINCIPAL'"),
        (
            ("add", "alice", "--allow", "READ", "--topic", "t"),
            "'alice' is not a principal: say User:alice",
        ),
        (("add", "User:a", "--topic", "t"), "say what: --allow OPERATION or --deny"),
        (("add", "User:a", "--allow", "READ"), "say of what: --topic, --group"),
        (
            ("add", "User:a", "--allow", "REED", "--topic", "t"),
            "'REED' is not a valid operation: ALL, READ",
        ),
        (
            ("add", "User:a", "--allow", "WRITE", "--group", "g"),
            "WRITE is not an operation on a GROUP",
        ),
        (
            ("add", "User:a", "--deny", "READ", "--topic", "t*"),
            "'t*': for a prefix, say t --prefixed",
        ),
        (("list", "alice"), "say User:alice"),
        (("list", "--topic", "t*"), "say t --prefixed"),
        (("remove", "--yes"), "say which entries"),
        (("remove", "--yes", "--topic", ""), "a name is empty"),
    ],
)
async def test_words_that_say_nothing_that_could_be_done(api, milena, words, told):
    code, _, err = await milena("acls", *words)
    assert code == 64
    assert told in " ".join(err.split())
    assert api.access.asked == []


# -- quotas ------------------------------------------------------------------------------------------


async def test_quotas_are_set_listed_and_deleted(api, milena):
    assert await milena("quotas", "list") == (0, "", "no quotas\n")
    set_it = ("quotas", "set", "request_rate=5", "stream_count=2", "--user", "ann")
    _, out, _ = await milena(*set_it)
    assert out == "quota of user ann: request_rate 5, stream_count 2\n"
    _, out, _ = await milena("quotas", "set", "stream_count=none", "--user", "ann", "--json")
    assert json.loads(out) == {"user": "ann", "client_id": None, "limits": {"request_rate": 5}}
    await milena("quotas", "set", "consumer_count=1", "--user", "*", "--client-id", "app")
    _, out, _ = await milena("quotas", "list")
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["ann", "any", "request_rate", "5"],
        ["*", "app", "consumer_count", "1"],
    ]
    _, out, _ = await milena("quotas", "delete", "--user", "*", "--client-id", "app")
    assert out == "no quota of user *, client id app\n"
    _, out, _ = await milena("quotas", "list", "--json")
    assert [quota["user"] for quota in json.loads(out)] == ["ann"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("set", "request_rate=5"), "say whom it binds"),
        (("set", "--user", "ann"), "Missing argument"),
        (("set", "rate=5", "--user", "ann"), "'rate' is not a bound: request_rate"),
        (("set", "request_rate=0", "--user", "ann"), "write request_rate=AMOUNT"),
        (("set", "request_rate", "--user", "ann"), "or request_rate=none"),
        (("delete",), "say whom it binds"),
    ],
)
async def test_what_is_no_quota_is_refused(api, milena, words, told):
    code, _, err = await milena("quotas", *words)
    assert code == 64
    assert told in err
    assert not api.access.asked
