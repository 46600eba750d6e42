"""Names for clusters: how the file is read, what is said of its mistakes, and what counts before what."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete, ShellComplete, get_completion_class

from milena import cli
from milena.cluster.credentials import ANONYMOUS, VARIABLES, Credentials
from milena.commands.profiles import BadProfileError, Profile, load_profiles, profile_path
from milena.commands.target import EXIT_USAGE, ClusterTarget
from milena.model.secret import Secret
from tests.support.fakes.api import FakeApi
from tests.support.http.http_server import serving

GOOD = """
default = "a"
[profiles.a]
url = "http://a:1"
timeout = 3
[profiles."b.c"]
url = "http://b:1"
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write the user's file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("MILENA_URL", raising=False)
    for variable in ("MILENA_PROFILE", *VARIABLES.values()):
        monkeypatch.delenv(variable, raising=False)

    def write(text):
        path = tmp_path / "milena" / "config.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


def test_the_file_is_where_the_desktop_says_and_only_if_that_is_absolute(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert profile_path({"XDG_CONFIG_HOME": "/etc/x"}) == Path("/etc/x/milena/config.toml")
    usual = Path("/home/me/.config/milena/config.toml")
    assert profile_path({}) == profile_path({"XDG_CONFIG_HOME": "x"}) == usual


async def test_refused_credentials_of_a_profile_are_told_with_its_file(
    written, capsys, monkeypatch
):
    api = FakeApi()
    api.answer = (
        401,
        {"error_code": 40101, "message": "There is no user of this name and password."},
    )
    async with serving(api.app()) as url:
        path = written(f"[profiles.a]\nurl = '{url}'\nuser = 'bob'\npassword = 'mine'\n")
        path.chmod(0o600)
        assert await asyncio.to_thread(cli.run, ["--profile", "a", "topics", "list"]) == 1
        refused = "milena: There is no user of this name and password; asked by user 'bob'"
        options = "on the command line: --user and --password-file, or --token-file"
        told = capsys.readouterr().err
        assert told.startswith(refused)
        assert f"{options}; these are of profile a in {path}" in told
        assert "mine" not in told
        monkeypatch.setenv("MILENA_TOKEN", "mine")
        for words in (["--url", url, "status"], ["--url", url, "consume", "t"]):
            assert await asyncio.to_thread(cli.run, words) == 1
            told = capsys.readouterr().err
            assert "a token is unknown: it is expired, revoked or of another cluster" in told
            assert f"({options})" in told


def test_profiles_are_read(written):
    found = load_profiles(written(GOOD))
    assert found.default == "a"
    assert list(found.profiles.values()) == [
        Profile(name="a", url="http://a:1", timeout_s=3),
        Profile(name="b.c", url="http://b:1"),
    ]


def test_without_a_file_there_are_none(tmp_path):
    assert load_profiles(tmp_path / "none").profiles == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[profiles.a\n", "is not TOML: Expected ']' at the end of a table declaration (at line 1"),
        ("\nprofile = 1\n", ", line 2: unknown key 'profile'; known: default, profiles"),
        ("profiles = 1\n", ", line 1: profiles must be tables"),
        ("\n[a]\nurl = 'x'\n", ": a profile is a table [profiles.a], not [a]"),
        ("[profiles]\na = 1\n", ", line 2: profile a must be a table: [profiles.a]"),
        ("[profiles.a]\n[profiles.b]\nurl = 'x'\n", ", line 1: profile a: say url = "),
        ("[profiles.b]\nurl = 'x'\n[profiles.a]\nurl = 7\n", ", line 4: profile a: say url = "),
        ("[profiles.a]\nurl = 'x'\nurls = 'x'\n", ", line 3: profile a: unknown key 'urls'"),
        ("[profiles.a]\nurl = 'x'\ntimeout = 'x'\n", ", line 3: profile a: timeout is a number"),
        ("[profiles.a]\nurl = 'x'\ntimeout = 0\n", "at least 0.1"),
        ("default = 'b'\n[profiles.a]\nurl = 'x'\n", ", line 1: default = 'b' names no profile"),
    ],
)
def test_a_mistake_is_told_with_its_line(written, text, said):
    path = written(text)
    with pytest.raises(BadProfileError) as caught:
        load_profiles(path)
    assert str(path) in caught.value.message
    assert said in caught.value.message


def test_a_file_that_is_no_text_is_told(written):
    path = written("")
    path.write_bytes(b"\xff")
    with pytest.raises(BadProfileError, match="cannot read"):
        load_profiles(path)


@pytest.fixture
def target(monkeypatch):
    """What a command is given."""
    seen = []

    @click.command("show")
    @click.pass_obj
    def show(found):
        seen.append(found)

    monkeypatch.setitem(cli.cli.commands, "show", show)

    def run(*words):
        assert cli.run([*words, "show"]) == 0
        return seen[-1]

    return run


def test_what_is_said_counts_in_its_order(written, target, monkeypatch):
    assert target() == ClusterTarget(url=cli.DEFAULT_URL, timeout_s=15)
    written(GOOD)
    assert target() == ClusterTarget(url="http://a:1", timeout_s=3)
    monkeypatch.setenv("MILENA_PROFILE", "b.c")
    assert target() == ClusterTarget(url="http://b:1", timeout_s=15)
    monkeypatch.setenv("MILENA_URL", "http://variable:1")
    assert target() == ClusterTarget(url="http://variable:1", timeout_s=15)
    assert target("--profile", "a") == ClusterTarget(url="http://a:1", timeout_s=3)
    assert target("--profile", "a", "--timeout", "7").timeout_s == 7
    assert target("--url", "http://flag:1").url == "http://flag:1"


def test_credentials_count_in_their_order(written, target, monkeypatch):
    """Those of variables are not shown to a cluster that a flag names by its profile."""
    path = written(GOOD + 'token = "mine"')
    path.chmod(0o600)
    monkeypatch.setenv("MILENA_USER", "alice")
    monkeypatch.setenv("MILENA_PASSWORD", "p")
    alice = Credentials(user="alice", password=Secret("p"))
    mine = Credentials(token=Secret("mine"))
    assert target().credentials == alice
    assert target("--url", "http://flag:1").credentials == alice
    assert target("--user", "bob").credentials == Credentials(user="bob", password=Secret("p"))
    assert target("--token-file", "f").credentials == Credentials(token_file="f")
    assert target("--profile", "a").credentials == ANONYMOUS
    assert target("--profile", "b.c").credentials == mine
    assert target("--profile", "b.c", "--token-file", "f").credentials.token_file == "f"
    monkeypatch.delenv("MILENA_USER")
    monkeypatch.delenv("MILENA_PASSWORD")
    monkeypatch.setenv("MILENA_PROFILE", "b.c")
    assert target().credentials == mine


def test_a_file_with_a_secret_is_for_its_owner_alone(written):
    path = written(GOOD + 'token = "mine"')
    path.chmod(0o640)
    with pytest.raises(BadProfileError, match=f"chmod 600 {path}"):
        load_profiles(path)
    path.chmod(0o600)
    assert "mine" not in repr(load_profiles(path))
    written(GOOD + 'token_file = "/t"').chmod(0o644)
    assert load_profiles(path).profiles["b.c"].credentials == {"token_file": "/t"}


def test_credentials_that_cannot_be_are_told(written, capsys):
    written(GOOD)
    assert cli.run(["--user", "bob", "topics", "list"]) == EXIT_USAGE
    assert "user: give password_file or password, too" in capsys.readouterr().err
    with pytest.raises(BadProfileError, match=r"line 8.*key: give cert"):
        load_profiles(written(GOOD + 'key = "k"'))


def test_a_url_and_a_profile_on_one_command_line_are_one_too_many(written, capsys):
    written(GOOD)
    assert cli.run(["--url", "http://x:1", "--profile", "a", "profiles"]) == 64
    assert "give one of --url and --profile" in capsys.readouterr().err


def test_a_profile_that_is_not_there_names_those_that_are(written, capsys):
    written(GOOD)
    assert cli.run(["--profile", "z", "status"]) == 64
    assert "no profile 'z'" in (said := capsys.readouterr().err)
    assert "there: a, b.c" in said


def test_profiles_are_listed(written, capsys):
    written(GOOD)
    assert cli.run(["profiles"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["a", "http://a:1", "3", "default"],
        ["b.c", "http://b:1", "-"],
    ]


def test_what_runs_nodes_does_not_mind_the_file(written, capsys):
    written("[")
    assert cli.run(["start", "--help"]) == 0
    assert cli.run(["status"]) == 64


def completions(args, incomplete, kind=ShellComplete):
    found = kind(cli.cli, {}, "milena", "_MILENA_COMPLETE").get_completions(args, incomplete)
    return [item.value for item in found]


def test_shells_complete_commands_options_and_profiles(written):
    written(GOOD)
    assert completions([], "sta") == ["start", "status"]
    assert completions(["topics"], "cr") == ["create"]
    assert completions(["status"], "--w") == ["--watch"]
    assert completions(["--profile"], "b") == ["b.c"]
    written("[")
    assert completions(["--profile"], "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_asks_milena(shell, monkeypatch):
    monkeypatch.setattr(BashComplete, "_check_version", staticmethod(lambda: None))
    kind = get_completion_class(shell)
    assert "_MILENA_COMPLETE" in kind(cli.cli, {}, "milena", "_MILENA_COMPLETE").source()


def test_milena_answers_a_shell():
    asked = {
        "_MILENA_COMPLETE": "bash_complete",
        "COMP_WORDS": "milena topics del",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(
        [sys.executable, "-m", "milena"],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split() == ["plain,delete", "plain,delete-records"]
