"""The command that gives a right is one that the command line takes."""

import shlex

import pytest

from milena.commands.access.acls import acls
from milena.model.access import CLUSTER_NAME, Operation, ResourceType, allowing_command


@pytest.mark.parametrize(
    ("kind", "name", "command"),
    [
        (ResourceType.TOPIC, "orders", "--topic orders"),
        (ResourceType.TOPIC, "*", "--topic '*'"),
        (ResourceType.TOPIC, None, "--topic NAME"),
        (ResourceType.GROUP, "a b'; $(rm)", """--group 'a b'"'"'; $(rm)'"""),
        (ResourceType.TRANSACTIONAL_ID, "id", "--transactional-id id"),
        (ResourceType.CLUSTER, CLUSTER_NAME, "--cluster"),
    ],
)
def test_the_command_names_the_resource(kind, name, command) -> None:
    found = allowing_command("User:shop", Operation.READ, kind, name)
    assert found == f"milena acls add User:shop --allow READ {command}"
    words = shlex.split(found)
    assert words[:3] == ["milena", "acls", "add"]
    acls.commands["add"].make_context("add", words[3:])
