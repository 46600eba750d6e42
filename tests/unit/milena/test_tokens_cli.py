"""``milena tokens`` against a node on paper: where the secret goes, and that nothing else shows it."""

import json
import os
import stat

import pytest

from milena.commands.access import tokens as token_commands
from tests.support.command_lines import runner
from tests.support.fakes.access_api import TOKEN_SECRET
from tests.support.fakes.api import FakeApi
from tests.support.http.http_server import serving


@pytest.fixture
async def api():
    fake = FakeApi()
    async with serving(fake.app()) as fake.url:
        yield fake


@pytest.fixture
def milena(api, capsys):
    run = runner(api.url, capsys)

    async def call(*words):
        code, out, err = await run(*words)
        assert TOKEN_SECRET not in err
        return code, out, err

    return call


async def test_tokens_have_a_line_each(api, milena):
    api.access.add_user("alice")
    api.access.be("alice")
    assert await milena("tokens", "list") == (0, "", "no tokens\n")
    grant = {
        "resource_type": "TOPIC",
        "pattern_type": "PREFIXED",
        "name": "orders-",
        "operations": ["READ", "WRITE"],
    }
    cluster = {**grant, "resource_type": "CLUSTER", "name": "kafka-cluster"}
    cluster.update(pattern_type="LITERAL", operations=["DESCRIBE"])
    end = {"expires_ms": 1_767_225_600_000 + 90 * 86_400_000}
    api.access.add_token("alice", "0abc0001", grants=[grant, cluster], note="ci", **end)
    api.access.add_token("alice", "0abc0002")
    code, out, _ = await milena("tokens", "list")
    assert code == 0
    assert out.splitlines() == [
        "TOKEN     NOTE  GRANTS                                      CREATED               EXPIRES",
        "0abc0001  ci    READ,WRITE:TOPIC:orders-* DESCRIBE:CLUSTER  2026-01-01T00:00:00Z  2026-04-01T00:00:00Z",
        "0abc0002  -     all                                         2026-01-01T00:00:00Z  never",
    ]
    api.access.be("bob")
    _, out, _ = await milena("tokens", "list", "--user", "alice", "--json")
    first, second = json.loads(out)
    assert first["grants"] == [grant, cluster]
    assert (second["note"], second["expires_ms"]) == ("", None)


async def test_a_token_is_printed_alone(api, milena):
    api.access.add_user("alice")
    api.access.be("alice")
    code, out, err = await milena(
        "tokens", "create", "--note", "ci", "--lifetime", "90d",
        "--grant", "READ,WRITE:TOPIC:orders-*", "--grant", "READ:GROUP:g",
    )  # fmt: skip
    assert (code, out) == (0, f"{TOKEN_SECRET}\n")
    assert err == "token 0abc1234 of alice, until 2026-04-01T00:00:00Z\n"
    method, path, body = api.access.asked[-1]
    assert (method, path) == ("POST", "/users/alice/tokens")
    assert (body["note"], body["lifetime_ms"]) == ("ci", 90 * 86_400_000)
    assert [(g["name"], g["pattern_type"]) for g in body["grants"]] == [
        ("orders-", "PREFIXED"),
        ("g", "LITERAL"),
    ]
    code, out, err = await milena("tokens", "create", "--user", "alice", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["token"] == TOKEN_SECRET
    assert api.access.asked[-1][2] == {}


@pytest.mark.parametrize("lifetime", ["9000w", "999999999w", "9999999999w"])
async def test_a_token_is_printed_however_long_it_lives(api, milena, lifetime):
    api.access.add_user("alice")
    words = ("tokens", "create", "--user", "alice", "--lifetime", lifetime)
    code, out, err = await milena(*words)
    assert (code, out) == (0, f"{TOKEN_SECRET}\n")
    assert err.startswith("token 0abc1234 of alice, until ")
    assert (await milena("tokens", "list", "--user", "alice"))[0] == 0


@pytest.mark.parametrize("is_json", [False, True])
async def test_a_token_goes_to_a_new_file_and_nowhere_else(api, milena, tmp_path, is_json):
    api.access.add_user("alice")
    path = tmp_path / "token"
    words = ["--json"] if is_json else []
    code, out, err = await milena("tokens", "create", "--user", "alice", "--out", str(path), *words)
    assert (code, err) == (0, "")
    assert path.read_text() == f"{TOKEN_SECRET}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert TOKEN_SECRET not in out
    if is_json:
        assert (json.loads(out)["token_id"], json.loads(out)["file"]) == ("0abc1234", str(path))
    else:
        assert out == f"token 0abc1234 of alice, for good: in {path}\n"


async def test_a_file_that_is_there_is_kept_and_costs_no_token(api, milena, tmp_path):
    api.access.add_user("alice")
    path, link = tmp_path / "token", tmp_path / "link"
    path.write_text("mine")
    link.symlink_to(tmp_path / "elsewhere")
    for taken in (path, link):
        words = ("tokens", "create", "--user", "alice", "--out", str(taken))
        code, _, err = await milena(*words)
        assert code == 64
        assert f"{taken} is there already" in err
    code, _, err = await milena(
        "tokens", "create", "--user", "alice", "--out", str(tmp_path / "no" / "token")
    )
    assert code == 64
    assert "No such file" in err
    assert path.read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()
    assert api.access.tokens["alice"] == []


async def test_no_file_is_left_where_no_token_was_made(api, milena, tmp_path):
    path = tmp_path / "token"
    code, _, err = await milena("tokens", "create", "--user", "nobody", "--out", str(path))
    assert (code, err) == (4, "milena: There is no user nobody.\n")
    assert not path.exists()


async def test_a_token_that_cannot_be_kept_is_named(api, milena, tmp_path, monkeypatch):
    api.access.add_user("alice")
    path = tmp_path / "token"
    real = os.open

    def full(name, flags, mode=0o777, **more):
        return real("/dev/full", os.O_WRONLY) if name == path else real(name, flags, mode, **more)

    path_taken = []
    monkeypatch.setattr(token_commands.os, "open", full)
    monkeypatch.setattr(
        token_commands.Path, "unlink", lambda self, **how: path_taken.append((self, how))
    )
    code, out, err = await milena("tokens", "create", "--user", "alice", "--out", str(path))
    monkeypatch.undo()
    assert (code, out) == (1, "")
    assert err == (
        f"milena: cannot write {path}: No space left on device; the token was shown nowhere: "
        "milena tokens delete 0abc1234 --user alice\n"
    )
    assert path_taken == [(path, {"missing_ok": True})]


async def test_tokens_are_deleted_once_that_is_meant(api, milena):
    api.access.add_user("alice")
    api.access.add_token("alice", "0abc1234")
    api.access.be("alice")
    code, _, err = await milena("tokens", "delete", "0abc1234")
    assert code == 64
    assert "(calls with it are refused from then on): say --yes" in err
    code, out, _ = await milena("tokens", "delete", "0abc1234", "--yes")
    assert (code, out) == (0, "deleted token 0abc1234\n")
    assert api.access.tokens["alice"] == []
    code, out, err = await milena("tokens", "delete", "0abc1234", "--yes", "--json")
    assert (code, err) == (4, "milena: There is no such token.\n")


async def test_a_token_in_the_place_of_its_id_is_not_sent_or_shown(api, milena):
    code, out, err = await milena("tokens", "delete", TOKEN_SECRET, "--yes")
    assert code == 64
    assert "give its id" in err
    assert TOKEN_SECRET not in out + err
    assert api.access.asked == []


@pytest.mark.parametrize("words", [("list",), ("create",), ("delete", "0abc1234", "--yes")])
async def test_who_is_nobody_says_whose_tokens(api, milena, words):
    code, _, err = await milena("tokens", *words)
    assert code == 64
    assert "you are User:ANONYMOUS, and no user: say --user NAME" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--lifetime", "90"), "'90' is not a duration: write 90d"),
        (("--grant", "READ"), "'READ' is not OPERATIONS:TYPE:NAME"),
        (("--grant", "READ:CLUSTER"), "READ is not an operation on a CLUSTER"),
    ],
)
async def test_what_makes_no_token_is_told(api, milena, words, told):
    code, _, err = await milena("tokens", "create", *words)
    assert code == 64
    assert told in err
    assert api.access.asked == []
