"""Command lines in help, messages and documents are those of the program; units and wrong input are understood."""

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from milena import cli as command_line
from milena.cluster.http_connection import HttpConnections
from milena.commands.examples import examples_of
from milena.commands.options import Amount, Duration, Rate, SignedAmount
from tests.support.command_lines import check_command_line

ROOT = Path(__file__).parents[3]


def leaves() -> Iterator[tuple[str, click.Command]]:
    root = click.Context(command_line.cli)
    for name in command_line.cli.list_commands(root):
        command = command_line.cli.get_command(root, name)
        assert command is not None, name
        if not isinstance(command, click.Group):
            yield name, command
            continue
        ctx = click.Context(command, parent=root)
        for part in command.list_commands(ctx):
            found = command.get_command(ctx, part)
            assert found is not None, part
            yield f"{name} {part}", found


LEAVES = dict(leaves())


@pytest.mark.parametrize("name", [*LEAVES])
def test_the_help_of_every_command_ends_with_examples_that_are_right(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    lines = examples_of(name)
    assert lines, f"no example of {name}"
    text = CliRunner().invoke(command_line.cli, [*name.split(), "--help"]).output
    for line in lines:
        assert f"  {line}\n" in text
        words = shlex.split(re.split(r" [<>|] ", line)[0])
        for file in words:
            if re.search(r"\.(txt|json)$|^data/", file):
                (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / file).touch()
        check_command_line(words[1:])


def test_no_example_is_of_a_command_that_does_not_exist():
    source = (ROOT / "milena" / "commands" / "examples.py").read_text(encoding="utf-8")
    named = set(re.findall(r"^([a-z -]+): ", source, re.MULTILINE))
    assert named <= {*LEAVES, "access"}


# -- numbers -----------------------------------------------------------------------------------

LARGE = (
    "9223372036854775808",
    "9" * 5_000,
    "-" + "9" * 5_000,
    "9" * 18 + "T",
    "9" * 15 + "w",
    "-" + "9" * 15 + "w",
)


# ``dump`` sends no number: it reads files.
@pytest.mark.parametrize("name", [name for name in LEAVES if name != "dump"])
@pytest.mark.parametrize("text", LARGE, ids=lambda text: text[:19])
def test_a_number_that_does_not_fit_into_64_bits_is_refused_by_every_option(name, text):
    for param in LEAVES[name].params:
        found = None
        with contextlib.suppress(click.BadParameter):
            found = param.type.convert(text, param, None)
        assert not isinstance(found, int) or abs(found) < 1 << 63, param.name


# -- suggestions -------------------------------------------------------------------------------

SPOKEN = re.compile(
    r"(?<![\w./@-])milena ((?:--[a-z-]+ [A-Z]+ )?[a-z][a-z-]*(?: [a-z][a-z-]*)?)((?: --[a-z-]+)*)"
)
"""A command line within a sentence: the command's words, and the options right behind them."""


def spoken() -> Iterator[tuple[str, str, str]]:
    for folder in ("milena", "node", "http_api", "raft_meta", "storage"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            for found in SPOKEN.finditer(text):
                yield str(path.relative_to(ROOT)), found[1], found[2]


def command_of(words: str) -> str | None:
    """The longest command that the words begin with."""
    parts = re.sub(r"^--[a-z-]+ [A-Z]+ ", "", words).split()
    for count in (2, 1):
        name = " ".join(parts[:count])
        if name in LEAVES or any(leaf.startswith(f"{name} ") for leaf in LEAVES):
            return name
    return None


def options_of(name: str) -> set[str]:
    """The options that may stand behind a command: its own, and those of ``milena``."""
    params = [*command_line.cli.params, *(LEAVES[name].params if name in LEAVES else ())]
    return {option for param in params for option in (*param.opts, *param.secondary_opts)} | {
        "--help"
    }


SAID_IN_CODE = [*spoken()]


def test_every_command_that_a_message_names_exists():
    wrong = [
        (where, words, options)
        for where, words, options in SAID_IN_CODE
        if (name := command_of(words)) is None or set(options.split()) - options_of(name)
    ]
    # Two places speak of the package, not of the program.
    assert {words for _, words, _ in wrong} <= {"import sync", "peer"}, wrong
    assert len(SAID_IN_CODE) > 30


QUOTED = re.compile(r"`milena (?!\w+:)([^`\n]+)`")


def quoted() -> Iterator[tuple[str, str]]:
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for found in QUOTED.finditer(path.read_text(encoding="utf-8")):
            yield path.name, found[1]


def test_every_command_that_a_document_names_exists_with_its_options():
    wrong = []
    for where, line in quoted():
        words = [word for word in re.split(r"[\s=|\\]+", line) if word]
        plain = re.sub(r"--[a-z-]+ [^ -]\S*", "", line).split()
        name = command_of(" ".join(w for w in plain if re.fullmatch(r"[a-z-]+", w) and w[0] != "-"))
        options = {word for word in words if re.fullmatch(r"--[a-z-]+", word)}
        if not (name or options) or options - options_of(name or ""):
            wrong.append((where, line, name))
    assert not wrong
    assert len([*quoted()]) > 50


# -- units and names ---------------------------------------------------------------------------

COUNTED_ALONE = {
    "partition", "partitions", "numbers", "number", "replication_factor", "factor", "node_id",
    "offset", "producer_id", "producer_epoch", "batch_count",
}  # fmt: skip
"""Ids, offsets and small numbers: a unit would be a mistake."""
SERVER = {"start", "dev", "dump"}


def parameters(kind: type[click.Parameter] = click.Parameter) -> list[tuple[str, click.Parameter]]:
    found = [("", param) for param in command_line.cli.params]
    found += [(name, param) for name, command in LEAVES.items() for param in command.params]
    return [(name, p) for name, p in found if isinstance(p, kind) and name not in SERVER]


def test_every_amount_and_every_time_takes_a_unit():
    numbers = [
        (name, param)
        for name, param in parameters()
        if isinstance(param.type, click.IntRange | click.FloatRange)
        or param.type in (click.INT, click.FLOAT)
    ]
    assert len(numbers) > 40
    without = {
        (name, param.name)
        for name, param in numbers
        if not isinstance(param.type, Amount | Duration | Rate) and param.name not in COUNTED_ALONE
    }
    assert not without


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Amount(), "1M", 1_000_000),
        (Amount(), "1.5k", 1500),
        (Amount(), "64Ki", 65_536),
        (Amount(), "2MiB/s", 2 << 20),
        (Duration("s"), "90", 90),
        (Duration("s"), "1.5", 1.5),
        (Duration("s"), "500ms", 0.5),
        (Duration("s"), "3d", 259_200),
        (Duration("ms"), "5", 5),
        (Duration("ms"), "2s", 2000),
        (Rate(min=0), "0.5", 0.5),
        (Rate(min=0), "2k", 2000),
        (SignedAmount(), "-1k", -1000),
    ],
)
def test_units_are_understood(kind, text, value):
    assert kind.convert(text, None, None) == value


def test_every_argument_that_is_a_name_may_not_be_empty():
    for name, param in parameters(click.Argument):
        if param.type is click.STRING:
            # Bounds are NAME=AMOUNT, principals User:NAME; help takes none, too.
            assert param.name in {"bounds", "principal", "words"}, name


# -- wrong input -------------------------------------------------------------------------------

ODD = ("Whose", "Who ", "What ", "Of ", "That ", "Those ", "So ", "With which")


def every_command(command=command_line.cli, words=()):
    """Yield each command with its words, groups included."""
    yield words, command
    if isinstance(command, click.Group):
        ctx = click.Context(command, info_name=words[-1] if words else "milena")
        for name in command.list_commands(ctx):
            found = command.get_command(ctx, name)
            assert found is not None
            yield from every_command(found, (*words, name))


def test_every_option_has_a_help_that_a_new_user_understands():
    for words, command in every_command():
        for param in command.params:
            if not isinstance(param, click.Option) or param.hidden:
                continue
            where = f"{' '.join(words)} {param.opts[-1]}"
            assert param.help, f"{where} has no help"
            assert not param.help.startswith(ODD), f"{where}: {param.help}"
            shown = " ".join(param.get_help_record(click.Context(command)) or ())
            assert "<=None" not in shown, f"{where}: {shown}"


WRONG = """
topic list | No such command 'topic': did you mean topics?
topics lst | No such command 'lst': did you mean list?
topics remove x | No such command 'remove': there are alter, create, delete
topics create | Missing argument 'NAME...'
topics create "" | a name is empty
topics create x --partitions 0 | 0 is not in the range x>=1
topics create x --partitions many | 'many' is not a whole number
topics create x --config retention.ms | 'retention.ms' is not NAME=VALUE
topics create x --config retention.ms=3y | retention.ms: '3y' is not a duration: write 90d or 12h
topics create x --config segment.bytes=64X | '64X' is not a whole amount: write 800000, 50M
topics alter x | nothing to change: give --partitions
topics alter x --config a=1 --delete-config a | a is both set and reset
topics alter x --replication-factor two | 'two' is not a whole number
topics delete x | (all records are lost): say --yes
topics delete x "" --yes | a name is empty
topics describe | Missing argument 'NAME'
topics delete-records x --yes | say either --before-offset or --before-time
topics delete-records x --before-offset y --yes | 'y' is neither an offset nor 'latest'
topics delete-records x --before-time tomorrow --yes | write 2026-01-31T12:00:00Z
nodes list all | unexpected extra argument (all)
nodes remove one | 'one' is not a whole number
nodes drain | Missing argument 'ID'
nodes drain 0 | 0 is not in the range x>=1
nodes drain 1 | moves all replicas away from node 1: say --yes
nodes drain 1 --undo --wait | --undo takes no other option
partitions move x --to 1 | Missing option '--partition'
partitions move x -p 0 | Missing option '--to'
partitions move x -p 0 --to 1;2 | '1;2' is not a list of node ids: write 1,2,3
partitions move x -p -1 --to 1 | -1 is not in the range x>=0
partitions lead x -p 0 | Missing option '--by'
groups reset g | Missing option '--topic'
groups reset g --topic x | give one of --to-offset, --to-time and --shift-by
groups reset g --topic x --to-offset end | 'end' is neither an offset nor earliest nor latest
groups reset g --topic x --shift-by far | 'far' is not a whole amount
groups reset g --topic x --to-time yesterday | 'yesterday' is not a time
groups delete g | (the committed offsets are lost): say --yes
consume | Missing argument 'TOPIC'
consume "" | a name is empty
consume x --offset -1 | -1 is not in the range x>=0
consume x --offset 1 --last 2 | give one of --from-beginning, --offset, --time and --last
consume x --time 25:00 | '25:00' is not a time: write 2026-01-31T12:00:00Z
consume x --until later | 'later' is not a time
consume x --until 5 --follow | --until ends the command
consume x --format xml | 'xml' is not a format: use value, key-value, json, raw, or a template
consume x --format %q | '%q' is not a field: use %t topic
consume x --group g -p 0 | partitions are the group's to share out
consume x --group g --offset 3 | use milena groups reset
consume x --order size | 'size' is not one of 'partition', 'time'
consume x --order time --follow | leave out --follow
consume x --separator "" | it is empty
consume x --max-records ten | 'ten' is not a whole amount
consume x --from-begining | Did you mean '--from-beginning'?
consume x --offset 9223372036854775808 | does not fit into 64 bits: the most is 9223372036854775807
groups reset g --topic x --to-time 9223372036854775808 --yes | does not fit into 64 bits
produce x no-such-file | File 'no-such-file' does not exist
produce x /dev/null --acks 2 | '2' is not one of 'all', '1', '0'
produce x /dev/null --batch-bytes 1 | 1 is not in the range 1024<=x<=33554432
produce x /dev/null --rate 0 | 0.0 is not in the range 0<x<=10000000
produce x /dev/null --linger-ms soon | 'soon' is not a time: write 90ms, 2m or 3d
produce x /dev/null --key-separator : --key-field a | give one of --key-separator and --key-field
produce x /dev/null --header novalue | 'novalue' is not NAME=VALUE
produce x /dev/null --transactional a --name b | give one of --transactional and --name
produce x /dev/null --transactional a --acks 1 | --transactional needs --acks all
produce x /dev/null --format json --null-marker - | leave out --key-separator, --key-field and --null-marker
produce x /dev/null --compression rar | 'rar' is not one of 'none', 'gzip', 'lz4', 'zstd'
status --interval 5 | say --watch, too
status --watch --json | leave out one
doctor --lag lots | 'lots' is not a whole amount
drain --timeout 1h | 3600.0 is not in the range 0.1<=x<=300
users create "" --no-password | a name is empty
users create x --password-file /no-such | cannot read /no-such: No such file or directory
users delete x | (its tokens and entries are deleted, too): say --yes
tokens create --lifetime 90 | '90' is not a duration: write 90d or 12h
tokens create --grant READ | is not OPERATIONS:TYPE:NAME, as in READ,WRITE:TOPIC:orders
tokens delete mln_abc --yes | give its id, which milena tokens list shows
acls add shop --allow READ --topic x | 'shop' is not a principal: say User:shop
acls add User:shop --allow FLY --topic x | 'FLY' is not a valid operation: ALL, READ
acls add User:shop --topic x | say what: --allow OPERATION or --deny OPERATION
acls remove --yes | say which entries
quotas set producer_byte_rate=fast --user x | such as 500 or 10M
quotas set speed=1 --user x | 'speed' is not a bound: request_rate
quotas set request_rate=1 | --user NAME, --client-id ID, or both
access set closed | 'closed' is not one of 'off', 'optional', 'required'
transactions abort x 0 --yes | 'x' is not a whole number
transactions list --older-than -5 | -5.0 is not in the range x>=0
reassignments cancel --partition 0 | --partition needs --topic
rebalance --throttle fast | 'fast' is not a whole amount
bench produce x --size 1 | 1 is not in the range 16<=x
bench speed x | No such command 'speed': there are consume, latency, produce
help topics nosuch | No such command 'nosuch': there are alter, create
completion tcsh | 'tcsh' is not one of 'bash', 'zsh', 'fish'
status --url http://127.0.0.1:1/v3 | say http://127.0.0.1:1
status --url ftp://x | it must begin with http:// or https://
status --timeout 0 | 0.0 is not in the range x>=0.1
status --timeout soon | 'soon' is not a time: write 90s, 2m or 3d
status --profile nosuch | no profile 'nosuch'
status --user x | give password_file or password, too
status --bootstrap-server x | No such option '--bootstrap-server': use milena --url
status --nosuch | No such option '--nosuch'
status --token-file /no-such | token_file: cannot use /no-such: No such file or directory
dump /no-such | Path '/no-such' does not exist
dev --nodes 2 | '2' is not one of '1', '3', '5'
"""


@pytest.mark.parametrize("row", WRONG.strip().splitlines())
def test_wrong_input_is_told_with_what_to_change(row, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.StringIO())

    def no_call(*_: object) -> None:
        raise AssertionError("a wrong command line must not reach a node")

    monkeypatch.setattr(HttpConnections, "ask", no_call)
    line, told = row.split(" | ")
    words = shlex.split(line, posix=True)
    try:
        code: object = command_line.run(words)
    except SystemExit as ended:
        code = ended.code
    printed = capsys.readouterr()
    assert (code, printed.out) == (64, "")
    assert told in " ".join(printed.err.split())
    assert "Traceback" not in printed.err
    assert len(printed.err.splitlines()[-1]) < 400
