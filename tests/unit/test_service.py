"""The unit of systemd and docs/bare-metal.md: the node accepts the command and the settings, and has time to stop."""

import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from node.cli import EXIT_REFUSED, start
from node.config.options import NodeConfig
from node.config.sources import load_config
from tests.support.http.console import blocks

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "docs" / "milena.service"
PAGE = (ROOT / "docs" / "bare-metal.md").read_text(encoding="utf-8")


def unit() -> ConfigParser:
    found = ConfigParser(interpolation=None, delimiters=("=",))
    found.optionxform = str
    found.read_string(UNIT.read_text(encoding="utf-8"))
    return found


SERVICE = unit()["Service"]
PROGRAM, COMMAND, *OPTIONS = shlex.split(SERVICE["ExecStart"])


VOTERS, KAFKA, OBSERVER = blocks(PAGE, "toml")


@pytest.fixture(
    params=[VOTERS, OBSERVER, KAFKA + VOTERS, KAFKA + OBSERVER],
    ids=["voter", "observer", "voter with Kafka clients", "observer with Kafka clients"],
)
def settings(request, tmp_path) -> Path:
    """The settings of the page, with the files that they name in another folder."""
    text = request.param
    for name in re.findall(r'"/etc/milena/([\w-]+)"', text):
        (tmp_path / name).write_text("long enough\n", encoding="utf-8")
    path = tmp_path / "milena.toml"
    path.write_text(text.replace("/etc/milena/", f"{tmp_path}/"), encoding="utf-8")
    return path


def test_the_command_of_the_unit_is_accepted(settings):
    words = [str(settings) if word == "/etc/milena/milena.toml" else word for word in OPTIONS]
    assert words != OPTIONS
    assert start.name == COMMAND
    given = start.make_context(COMMAND, words).params
    assert given.pop("config_file") == settings
    config = load_config(settings, {}, given)
    assert {len(config.peers), len(config.join)} == {0, 3}


def test_the_node_writes_only_where_the_unit_lets_it(settings):
    folder = f"/var/lib/{SERVICE['StateDirectory']}"
    assert SERVICE["ProtectSystem"] == "strict"
    assert Path(load_config(settings, {}, {}).data_dir).is_relative_to(folder)


def test_a_node_has_time_to_drain_and_to_close_its_logs():
    drain_ms = NodeConfig.__dataclass_fields__["drain_timeout_ms"].default
    assert int(SERVICE["TimeoutStopSec"]) * 1000 == 3 * drain_ms
    assert f"TimeoutStopSec={SERVICE['TimeoutStopSec']}`" in PAGE


def test_a_refusal_is_not_repeated_and_a_crash_is():
    assert SERVICE["RestartPreventExitStatus"] == str(EXIT_REFUSED)
    assert SERVICE["Restart"] == "on-failure"


def test_the_page_and_the_unit_name_the_same_program_and_settings():
    folder = str(Path(PROGRAM).parents[1])
    install = "\n".join(blocks(PAGE, "sh"))
    assert re.search(rf"ln --symbolic --force --no-dereference {folder}-[\d.]+ {folder}\n", install)
    assert f"useradd --system --home-dir /var/lib/{SERVICE['StateDirectory']} " in install
    for name, value in re.findall(r"^\| `(\w+)=([^`]*)` \|", PAGE, re.MULTILINE):
        assert SERVICE[name] == value


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_finds_no_fault_in_the_unit(tmp_path):
    # systemd-analyze wants a program that exists.
    copy = tmp_path / UNIT.name
    text = UNIT.read_text(encoding="utf-8").replace(PROGRAM, sys.executable)
    copy.write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)],
        capture_output=True,
        text=True,
        check=False,
    )
    # It also looks at the units of this machine that the unit names.
    assert not [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert done.returncode == 0
