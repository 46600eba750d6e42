"""``import milena`` is cheap, and gives what it promises."""

import subprocess
import sys

import click
import pytest

import milena
from milena.cli import OWN_COMMANDS, SHORT_HELP, cli


@pytest.mark.parametrize("name", milena.__all__)
def test_every_name_is_there(name):
    assert getattr(milena, name) is not None
    assert name in dir(milena)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = milena.Nonsense


def loaded_after(statement):
    code = f"import sys; {statement}; print(*sys.modules)"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()


def test_a_command_is_there_without_a_general_http_client():
    loaded = {
        *loaded_after(
            "import milena.commands.producing.produce, milena.sync; from milena import cli"
        )
    }
    assert not {"aiohttp", "yarl"} & loaded


def test_importing_the_package_loads_no_part_of_it():
    loaded = loaded_after("import milena")
    assert not {"aiohttp", "asyncio", "msgpack", "milena.client", "milena.errors"} & {*loaded}


def test_the_client_needs_nothing_of_the_server():
    loaded = loaded_after(
        "import milena; [getattr(milena, n) for n in milena.__all__]; import milena.sync"
    )
    of_the_server = {"orjson", "uvloop", "immutables", "pysyncobj", "prometheus_client"}
    assert not of_the_server & {name.partition(".")[0] for name in loaded}
    packages = {name.partition(".")[0] for name in loaded}
    assert not {"node", "http_api", "raft_meta"} & packages


def test_no_progress_bar_is_loaded_that_nobody_sees():
    assert "tqdm" not in loaded_after("import milena.commands.producing.produce")


def test_a_command_loads_nothing_of_the_others():
    run = "from milena import cli; cli.run(['topics', '--help'])"
    loaded = {*loaded_after(run)}
    assert "milena.commands.topics" in loaded
    # Profiles are read for every command.
    others = {*OWN_COMMANDS.values()} - {"topics", "profiles"}
    assert not {f"milena.commands.{module}" for module in others} & loaded
    assert "tqdm" not in loaded


def test_the_help_has_a_line_for_each_command_and_loads_none():
    assert {*SHORT_HELP} == {*cli.list_commands(click.Context(cli))}
    loaded = {*loaded_after("from milena import cli; cli.run(['--help'])")}
    assert not {f"milena.commands.{module}" for module in OWN_COMMANDS.values()} & loaded - {
        "milena.commands.profiles"
    }
    assert "milena.cli" in loaded
    assert "node.cli" not in loaded
