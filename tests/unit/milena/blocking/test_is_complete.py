"""``milena.sync`` has everything that the asynchronous client has, with the same parameters.

``milena.blocking.forwarding`` makes most of it.
"""

import inspect

import pytest

import milena
from milena import sync

PAIRS = {
    milena.Client: sync.Client,
    milena.AdminClient: sync.Admin,
    milena.AccessAdmin: sync.AccessAdmin,
    milena.Producer: sync.Producer,
    milena.Transaction: sync.Transaction,
    milena.TransactionalProducer: sync.TransactionalProducer,
    milena.NamedProducer: sync.NamedProducer,
    milena.PartitionReader: sync.PartitionReader,
    milena.Consumer: sync.Consumer,
    milena.Deliveries: sync.Deliveries,
}

INTERNALS = {
    milena.AdminClient: {"over"},
    milena.Producer: {
        "learn_topic",
        "offer",
        "offer_many",
        "outgoing",
        "put_back",
        "settle",
        "wait_for_room",
    },
    milena.TransactionalProducer: {"persist"},
    milena.Consumer: {"next_run", "mark", "take_back", "given_out", "topic_tags"},
    milena.PartitionReader: {"topic_tag"},
    milena.Deliveries: {"receipts", "when_done"},
}
"""What the asynchronous classes have for the client's own modules."""
INTERNALS[milena.Transaction] = INTERNALS[milena.Producer]

MORE = {"timeout_s", "timeout_ms", "clock"}
"""Parameters in which the two differ: a blocking wait may have a limit, and only tests give a clock."""


def public(kind):
    return {
        name: value
        for name, value in inspect.getmembers(kind)
        if not name.startswith("_") and (callable(value) or isinstance(value, property))
    }


def parameters(function):
    found = inspect.signature(function).parameters.values()
    return {(p.name, p.kind, p.default) for p in found if p.name not in {"self", *MORE}}


@pytest.mark.parametrize("kind", PAIRS, ids=lambda kind: kind.__name__)
def test_everything_is_in_the_blocking_client(kind):
    internal = INTERNALS.get(kind, set())
    assert internal <= public(kind).keys(), "the list names what is not there"
    assert public(kind).keys() - internal <= public(PAIRS[kind]).keys()


@pytest.mark.parametrize("kind", PAIRS, ids=lambda kind: kind.__name__)
def test_parameters_are_the_same(kind):
    blocking = public(PAIRS[kind])
    for name, value in {"__init__": kind.__init__, **public(kind)}.items():
        if name not in blocking or isinstance(value, property):
            continue
        assert parameters(value) == parameters(blocking[name]), name


@pytest.mark.parametrize("kind", PAIRS.values(), ids=lambda kind: kind.__name__)
def test_everything_says_what_it_does(kind):
    for name, value in public(kind).items():
        assert inspect.getdoc(value), name
