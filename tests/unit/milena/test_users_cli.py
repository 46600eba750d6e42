"""``milena users`` against a node on paper: where passwords come from, and that nothing shows them."""

import io
import json
import os
import pty
import subprocess
import sys

import pytest

from milena.cluster.credentials import password_of
from tests.support.command_lines import runner
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
    run = runner(api.url, capsys)

    async def call(*words):
        code, out, err = await run(*words)
        assert CANARY not in out + err
        return code, out, err

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


async def test_users_have_a_line_each(api, milena):
    assert await milena("users", "list") == (0, "", "no users\n")
    api.access.add_user("root", CANARY, "old", is_superuser=True)
    api.access.scram["root"] = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    api.access.add_user("alice")
    api.access.add_token("alice", "0abc1234")
    code, out, _ = await milena("users", "list")
    assert code == 0
    assert out.splitlines() == [
        "USER   SUPERUSER  PASSWORDS  TOKENS  SCRAM",
        "alice  no                 0       1  no",
        "root   yes                2       0  SHA-256, SHA-512",
    ]
    _, out, _ = await milena("users", "list", "--json")
    assert json.loads(out)[1] == {
        "name": "root",
        "is_superuser": True,
        "password_count": 2,
        "token_count": 0,
        "scram_mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"],
    }


async def test_a_password_is_typed_twice_and_unseen(api, milena, typed):
    prompts = typed(CANARY, "another", CANARY, CANARY)
    code, out, err = await milena("users", "create", "alice")
    assert (code, out) == (0, "created user alice: 1 password, no tokens\n")
    assert "do not match" in err
    assert len(prompts) == 4
    assert api.access.passwords["alice"] == [CANARY]


async def test_several_users_are_created_one_after_the_other(api, milena, typed):
    code, out, _ = await milena("users", "create", "a", "b", "a", "--no-password")
    assert (code, out.splitlines()) == (
        0,
        ["created user a: no passwords, no tokens", "created user b: no passwords, no tokens"],
    )
    api.access.add_user("d")
    code, out, err = await milena("users", "create", "c", "d", "e", "--no-password", "--json")
    assert (code, json.loads(out)["name"]) == (5, "c")
    assert "user d is there already" in err
    assert "e" not in api.access.passwords
    prompts = typed("one", "one", "two", "two")
    assert (await milena("users", "create", "f", "g"))[0] == 0
    assert [prompt.split(":")[0] for prompt in prompts[::2]] == ["Password of f", "Password of g"]
    assert [api.access.passwords[name] for name in "fg"] == [["one"], ["two"]]


async def test_several_users_do_not_share_a_password(api, milena, password_file):
    code, _, err = await milena("users", "create", "a", "b", "--password-file", password_file)
    assert (code, api.access.passwords) == (64, {})
    assert (
        "--password-file is for one user: leave it out to be asked for each, or give --no-password"
        in err
    )


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


async def test_scram_is_given_with_a_password_and_taken_without_one(
    api, milena, typed, password_file
):
    code, out, _ = await milena(
        "users", "create", "alice", "--scram", "--password-file", password_file
    )
    assert (code, out) == (
        0,
        "created user alice: 1 password, no tokens, SCRAM-SHA-256, SCRAM-SHA-512\n",
    )
    assert api.access.asked[-1][2] == {"password": CANARY, "is_superuser": False, "scram": True}
    code, out, _ = await milena("users", "change", "alice", "--no-scram")
    assert (code, out) == (0, "changed user alice: 1 password, no tokens\n")
    assert api.access.asked[-1][2] == {"scram": False}
    typed(CANARY, CANARY)
    code, out, _ = await milena("users", "change", "alice", "--scram", "--superuser")
    assert (code, out.rpartition(": ")[2]) == (
        0,
        "1 password, no tokens, SCRAM-SHA-256, SCRAM-SHA-512\n",
    )
    assert api.access.asked[-1][2] == {"password": CANARY, "is_superuser": True, "scram": True}
    code, _, err = await milena("users", "create", "bob", "--scram", "--no-password")
    assert (code, "bob" in api.access.passwords) == (64, False)
    assert "--scram needs a password: leave out --no-password" in err


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
    assert "(its tokens and entries are deleted, too): say --yes" in err
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
        ((), "give --password-file FILE, - for standard input, or --no-password"),
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
        (CANARY.encode() + b"\xff", "it is not text"),
        (CANARY.encode() * 300, "it has more than 4098 bytes"),
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


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_file_may_have_the_longest_password(end):
    longest = "\N{GRINNING FACE}" * 1_024
    assert password_of((longest + end).encode()).reveal() == longest


async def test_a_terminal_is_no_file_of_a_password(api, milena, typed):
    typed()
    code, _, err = await milena("users", "create", "alice", "--password-file", "-")
    assert code == 64
    assert "would show the password" in err
