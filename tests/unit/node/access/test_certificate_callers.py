"""Callers that bring a certificate: whose rights they have, until when, and what wins over it."""

import pytest

from http_api.access.callers import ANYBODY
from http_api.access.certificates import ClientCertificate
from milena.model.access import AccessMode, Operation, ResourceType
from milena.model.errors import NotReadyError, UnauthenticatedError
from raft_meta.machine.commands import AlterAcls, DeleteUser, SetAccessMode
from tests.support.fakes.ports import FakeNode
from tests.support.http.credentials import Allowed, ClosedNode, bearer, entry

HERE = "10.0.0.1"
READ = Allowed("READ", "TOPIC", "orders")
FAR_MS = 1 << 45


def certificate(*names: str, digest: bytes = b"a", expires_ms: int = FAR_MS) -> ClientCertificate:
    return ClientCertificate(digest=digest * 32, names=names, expires_ms=expires_ms)


@pytest.fixture
def node():
    return FakeNode()


@pytest.fixture
def closed(node):
    return ClosedNode(node)


def may_read(caller) -> bool:
    return caller.may(Operation.READ, ResourceType.TOPIC, "orders")


def test_a_certificates_user_need_not_be_one_of_the_cluster(node, closed):
    caller = node.callers.known(None, HERE, certificate("CN:ann"))
    assert (caller.principal, caller.user, caller.is_superuser) == ("User:ann", None, False)
    assert not may_read(caller)
    closed.allow("ann", READ)
    assert not node.callers.holds(caller)
    assert may_read(node.callers.known(None, HERE, certificate("CN:ann")))


def test_where_there_is_such_a_user_it_is_that_one(node, closed):
    closed.user("ann", READ)
    ann = node.callers.known(None, HERE, certificate("CN:ann"))
    assert (ann.user, ann.is_superuser, may_read(ann)) == ("ann", False, True)
    assert ann.user_index == node.image.users["ann"].created_index
    root = node.callers.known(None, HERE, certificate("CN:root", digest=b"b"))
    assert (root.user, root.is_superuser) == ("root", True)
    closed.store.apply(DeleteUser(name="ann"))
    assert not may_read(node.callers.known(None, HERE, certificate("CN:ann")))


def test_a_header_wins_be_it_good_or_bad(node, closed):
    closed.user("ann")
    token = closed.token("ann")["Authorization"]
    root = certificate("CN:root")
    assert node.callers.known(token, HERE, root).user == "ann"
    for given in ("", "Bearer mln_x", bearer("nothere1")["Authorization"], "Negotiate x"):
        with pytest.raises(UnauthenticatedError):
            node.callers.known(given, HERE, root)


def test_certificates_are_not_taken_for_each_other(node, closed):
    closed.allow("ann", READ)
    ann = node.callers.known(None, HERE, certificate("CN:ann"))
    bob = node.callers.known(None, HERE, certificate("CN:bob", digest=b"b"))
    assert (ann.principal, bob.principal) == ("User:ann", "User:bob")
    assert node.callers.known(None, HERE, certificate("CN:ann")) is ann
    with pytest.raises(UnauthenticatedError):
        node.callers.known(None, HERE)


def test_a_certificate_is_good_until_its_end(node, closed):
    now_ms = node.access.clock.wall_ms()
    short = certificate("CN:ann", expires_ms=now_ms + 10)
    caller = node.callers.known(None, HERE, short)
    node.access.clock.ms += 9
    assert node.callers.holds(caller)
    node.access.clock.ms += 1
    assert not node.callers.holds(caller)
    with pytest.raises(UnauthenticatedError, match="expired"):
        node.callers.known(None, HERE, short)


def test_one_that_names_nobody_is_told_why(node, closed):
    with pytest.raises(UnauthenticatedError, match="has not a common name"):
        node.callers.known(None, HERE, certificate("DNS:ann"))
    closed.store.apply(SetAccessMode(access_mode=AccessMode.OPTIONAL))
    caller = node.callers.known(None, HERE, certificate("DNS:ann"))
    assert (caller.principal, caller.is_enforced) == ("User:ANONYMOUS", False)
    assert node.callers.known(None, HERE, certificate("CN:ann")).principal == "User:ann"


def test_an_address_counts_for_certificates_too(node, closed):
    only = entry("User:ann", READ, host=HERE)
    closed.store.apply(AlterAcls(added=(only,), removed=()))
    here = node.callers.known(None, HERE, certificate("CN:ann"))
    there = node.callers.known(None, "10.0.0.2", certificate("CN:ann"))
    assert (here.host, may_read(here), may_read(there)) == (HERE, True, False)


def test_an_open_cluster_looks_at_no_certificate_and_one_cut_off_believes_none(node, closed):
    node.access.heard_ms = None
    node.callers.attend()
    with pytest.raises(NotReadyError):
        node.callers.known(None, HERE, certificate("CN:root"))
    closed.store.apply(SetAccessMode(access_mode=AccessMode.OFF))
    assert node.callers.known(None, HERE, certificate("CN:root")) is ANYBODY
