"""``milena users`` and ``milena tokens`` against a node on paper: what is asked, what is shown, and what never is."""

import asyncio
import io
import json
import os
import pty
import stat
import subprocess
import sys

import pytest

from milena import cli
from milena.commands import tokens as token_commands
from tests.support.fakes.access_api import TOKEN_SECRET
from tests.support.fakes.api import FakeApi
from tests.support.http.http_server import serving

CANARY = "canary-of-a-password"


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
    async def call(*words):
        code = await asyncio.to_thread(cli.run, ["--url", api.url, *words])
        printed = capsys.readouterr()
        assert CANARY not in printed.out + printed.err
        return code, printed.out, printed.err

    return call


@pytest.fixture
def typed(monkeypatch):
    """Let somebody type these at the prompts of passwords; gives the prompts."""

    def sit(*passwords):
        answers, prompts = list(passwords), []

        def ask(prompt):
            prompts.append(prompt)
            return answers.pop(0)

        monkeypatch.setattr("getpass.getpass", ask)
        monkeypatch.setattr("sys.stdin", Terminal())
        return prompts

    return sit


@pytest.fixture
def piped(monkeypatch):
    def pipe(data):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    return pipe


@pytest.fixture
def password_file(tmp_path):
    path = tmp_path / "password"
    path.write_text(f"{CANARY}\n")
    return str(path)


# -- users -------------------------------------------------------------------------------------------


async def test_users_have_a_line_each(api, milena):
    assert await milena("users", "list") == (0, "", "no users\n")
    api.access.add_user("root", CANARY, "old", is_superuser=True)
    api.access.add_user("alice")
    api.access.add_token("alice", "0abc1234")
    code, out, _ = await milena("users", "list")
    assert code == 0
    assert out.splitlines() == [
        "USER   SUPERUSER  PASSWORDS  TOKENS",
        "alice  no                 0       1",
        "root   yes                2       0",
    ]
    _, out, _ = await milena("users", "list", "--json")
    assert json.loads(out)[1] == {
        "name": "root",
        "is_superuser": True,
        "password_count": 2,
        "token_count": 0,
    }


async def test_a_password_is_typed_twice_and_unseen(api, milena, typed):
    prompts = typed(CANARY, "another", CANARY, CANARY)
    code, out, err = await milena("users", "create", "alice")
    assert (code, out) == (0, "created user alice: 1 password, no tokens\n")
    assert "do not match" in err
    assert len(prompts) == 4
    assert api.access.passwords["alice"] == [CANARY]


def test_a_terminal_does_not_show_what_is_typed():
    """The prompt of a real terminal; no node is asked before both passwords were typed."""
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "milena", "--url", "http://127.0.0.1:1", "users", "create", "a"]
    with subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        seen = b""
        for prompt in (b"Password of a: ", b"Once more: "):
            while prompt not in seen:
                seen += os.read(ours, 1024)
            os.write(ours, f"{CANARY}\n".encode())
        while b"milena: cannot reach" not in seen:
            seen += os.read(ours, 1024)
        assert process.wait(30) == 2
    os.close(ours)
    assert CANARY.encode() not in seen


async def test_a_password_comes_from_a_file_or_from_standard_input(
    api, milena, piped, password_file
):
    code, out, _ = await milena(
        "users", "create", "alice", "--superuser", "--password-file", password_file
    )
    assert (code, out) == (0, "created superuser alice: 1 password, no tokens\n")
    assert api.access.asked[-1][2] == {"password": CANARY, "is_superuser": True}
    piped(f"{CANARY}2\r\n".encode())
    code, out, _ = await milena("users", "create", "bob", "--password-file", "-", "--json")
    assert (code, json.loads(out)["password_count"]) == (0, 1)
    assert api.access.passwords["bob"] == [f"{CANARY}2"]


async def test_a_user_without_a_password_is_asked_for(api, milena):
    code, out, _ = await milena("users", "create", "robot", "--no-password")
    assert (code, out) == (0, "created user robot: no passwords, no tokens\n")
    assert api.access.asked[-1][2] == {"is_superuser": False}


async def test_who_is_there_is_not_made_again(api, milena):
    api.access.add_user("alice", CANARY)
    code, _, err = await milena("users", "create", "alice", "--no-password")
    assert code == 5
    assert err == (
        "milena: user alice is there already: milena users change alice sets its password\n"
    )
    assert [method for method, *_ in api.access.asked] == ["GET"]


async def test_a_password_follows_another(api, milena, typed, password_file):
    api.access.add_user("alice", "old")
    code, out, _ = await milena(
        "users", "change", "alice", "--password-file", password_file, "--keep-previous"
    )
    assert (code, out) == (0, "changed user alice: 2 passwords, no tokens\n")
    assert api.access.asked[-1][2] == {"password": CANARY, "keep_previous": True}
    typed(CANARY, CANARY)
    code, out, _ = await milena("users", "change", "alice", "--json")
    assert (code, json.loads(out)["password_count"]) == (0, 1)
    assert api.access.asked[-1][2] == {"password": CANARY}


@pytest.mark.parametrize(
    ("flag", "is_superuser"), [("--superuser", True), ("--no-superuser", False)]
)
async def test_a_rank_changes_without_a_password(api, milena, flag, is_superuser):
    api.access.add_user("alice", "old", is_superuser=not is_superuser)
    code, _, _ = await milena("users", "change", "alice", flag)
    assert code == 0
    assert api.access.asked[-1][2] == {"is_superuser": is_superuser}
    assert api.access.passwords["alice"] == ["old"]


async def test_who_keeps_the_former_password_means_a_new_one(api, milena, typed):
    api.access.add_user("alice", "old")
    typed(CANARY, CANARY)
    code, _, _ = await milena("users", "change", "alice", "--superuser", "--keep-previous")
    assert code == 0
    assert api.access.passwords["alice"] == [CANARY, "old"]


async def test_who_is_not_there_is_not_made_by_a_change(api, milena):
    code, _, err = await milena("users", "change", "alise", "--superuser")
    assert (code, err) == (4, "milena: There is no user alise.\n")
    assert api.access.passwords == {}


async def test_users_are_deleted_once_that_is_meant(api, milena, monkeypatch):
    api.access.add_user("alice")
    code, _, err = await milena("users", "delete", "alice")
    assert code == 64
    assert "the tokens and entries of alice go with it: say --yes" in err
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    code, _, err = await milena("users", "delete", "alice")
    assert (code, err.endswith("milena: not deleted\n")) == (1, True)
    assert "alice" in api.access.passwords
    assert await milena("users", "delete", "alice", "--yes") == (0, "deleted user alice\n", "")
    assert (await milena("users", "delete", "alice", "--yes"))[0] == 4
    api.access.add_user("root", "x", is_superuser=True)
    code, _, err = await milena("users", "delete", "root", "--yes")
    assert (code, err) == (1, "milena: This is the last superuser.\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "say --password-file FILE, - for standard input, or --no-password"),
        (("--password-file", "{file}", "--no-password"), "either --password-file or --no-password"),
        (("--password-file", "{file}.none"), "cannot read {file}.none: No such file"),
        (("--password", "x"), "No such option"),
    ],
)
async def test_where_a_password_comes_from_must_be_said(api, milena, password_file, words, told):
    words = [word.format(file=password_file) for word in words]
    code, _, err = await milena("users", "create", "alice", *words)
    assert code == 64
    assert told.format(file=password_file) in err
    assert api.access.asked == []


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "it must be one line"),
        (f"{CANARY}\nb".encode(), "it must be one line"),
        (CANARY.encode() + b"\xff", "it is no text"),
        (CANARY.encode() * 300, "it has more than 4096 bytes"),
    ],
)
async def test_what_is_no_password_is_told_and_not_shown(
    api, milena, piped, tmp_path, content, told
):
    path = tmp_path / "file"
    path.write_bytes(content)
    code, _, err = await milena("users", "create", "alice", "--password-file", str(path))
    assert code == 64
    assert f"{path}: {told}" in err
    piped(content)
    code, _, err = await milena("users", "change", "alice", "--password-file", "-")
    assert code == 64
    assert f"standard input: {told}" in err
    assert api.access.asked == []


async def test_a_terminal_is_no_file_of_a_password(api, milena, typed):
    typed()
    code, _, err = await milena("users", "create", "alice", "--password-file", "-")
    assert code == 64
    assert "would show the password" in err


# -- tokens ------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("lifetime", ["9000w", "999999999w", "999999999999999w"])
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
        f"milena: cannot write {path}: No space left on device; nobody has the token now: "
        "milena tokens delete 0abc1234 --user alice\n"
    )
    assert path_taken == [(path, {"missing_ok": True})]


async def test_tokens_are_deleted_once_that_is_meant(api, milena):
    api.access.add_user("alice")
    api.access.add_token("alice", "0abc1234")
    api.access.be("alice")
    code, _, err = await milena("tokens", "delete", "0abc1234")
    assert code == 64
    assert "is refused from then on: say --yes" in err
    code, out, _ = await milena("tokens", "delete", "0abc1234", "--yes")
    assert (code, out) == (0, "deleted token 0abc1234\n")
    assert api.access.tokens["alice"] == []
    code, out, err = await milena("tokens", "delete", "0abc1234", "--yes", "--json")
    assert (code, err) == (4, "milena: There is no such token.\n")


async def test_a_token_in_the_place_of_its_id_is_not_sent_or_shown(api, milena):
    code, out, err = await milena("tokens", "delete", TOKEN_SECRET, "--yes")
    assert code == 64
    assert "say its id" in err
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
        (("--lifetime", "90"), "'90' is no duration: write 90d"),
        (("--grant", "READ"), "'READ' is not OPERATIONS:TYPE:NAME"),
        (("--grant", "READ:CLUSTER"), "READ is no operation on a CLUSTER"),
    ],
)
async def test_what_makes_no_token_is_told(api, milena, words, told):
    code, _, err = await milena("tokens", "create", *words)
    assert code == 64
    assert told in err
    assert api.access.asked == []
