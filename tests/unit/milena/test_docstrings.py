"""The reference of the client (`make api-docs`) is whole: everything public is described."""

import ast
import enum
import inspect
import re

import pytest

import milena
from milena import sync
from tests.unit.milena.blocking.test_is_complete import INTERNALS

PUBLIC = {name: getattr(milena, name) for name in milena.__all__ if name != "sync"}
PUBLIC |= {f"sync.{name}": getattr(sync, name) for name in sync.__all__}
CLASSES = {name: found for name, found in PUBLIC.items() if inspect.isclass(found)}

INTERNAL = {name for names in INTERNALS.values() for name in names}
FEW = 3
"""Up to here, the names and types of parameters say enough."""

WITH_EXAMPLE = (
    "AdminClient",
    "Client",
    "Consumer",
    "NamedProducer",
    "PartitionReader",
    "Producer",
    "TransactionalProducer",
    "sync.Client",
)


def methods():
    for name, kind in CLASSES.items():
        if issubclass(kind, enum.Enum | tuple):
            continue
        for method, value in vars(kind).items():
            if inspect.isfunction(value) and not method.startswith("_") and method not in INTERNAL:
                yield f"{name}.{method}", value


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_described(name):
    if inspect.isclass(PUBLIC[name]) or inspect.isfunction(PUBLIC[name]):
        assert PUBLIC[name].__doc__


METHODS = dict(methods())


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_described_and_each_of_many_parameters(name):
    method = METHODS[name]
    described = inspect.getdoc(method)
    assert described
    parameters = inspect.signature(method).parameters.keys() - {"self"}
    if len(parameters) < FEW:
        return
    for parameter in parameters:
        assert re.search(rf"^ +{parameter}: |``{parameter}``", described, re.MULTILINE), (
            name,
            parameter,
        )


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_an_entry_point_has_an_example_that_compiles(name):
    lines = inspect.getdoc(CLASSES[name]).splitlines()
    first = next(
        place
        for place, line in enumerate(lines)
        if re.match(r" {4}(async with|with|producer =) ", line)
    )
    example = []
    for line in lines[first:]:
        if line and not line.startswith("    "):
            break
        example.append(line[4:])
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    compile("\n".join(example), name, "exec", flags=flags)
