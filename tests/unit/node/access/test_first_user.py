"""The first user: made once, by whichever node comes first, and given its password anew for who is locked out."""

import pytest

from milena.model.access import AccessMode
from milena.model.errors import (
    FeatureLevelError,
    InvalidAccessError,
    NoQuorumError,
    StartupError,
)
from milena.model.secret import Secret
from node.access.first_user import FirstUser, read_password
from node.config.budgets import BACKGROUND_RETRY_MS
from raft_meta.machine.commands import DeleteUser, PutUser
from tests.support.fakes.ports import FakeNode
from tests.support.http.credentials import VERIFIER, ClosedNode, basic

HERE = "10.0.0.1"


def first_user(node: FakeNode, *, password="the first password", is_reset=False) -> FirstUser:
    access = node.access
    return FirstUser(
        metadata=access.store,
        passwords=access.passwords,
        access=access.service,
        clock=access.clock,
        name="admin",
        password=Secret(password),
        mode=AccessMode.REQUIRED,
        is_reset=is_reset,
    )


async def logged_in(node: FakeNode, password: str) -> bool:
    given = basic("admin", password)["Authorization"]
    return (await node.callers.identify(given, HERE)).is_superuser


async def test_a_cluster_without_users_gets_one_and_is_closed():
    node = FakeNode()
    await first_user(node).run()
    assert node.image.access_mode == AccessMode.REQUIRED
    assert await logged_in(node, "the first password")


async def test_who_comes_later_changes_nothing():
    node = FakeNode()
    await first_user(node).run()
    before = node.image
    await first_user(node, password="another password").run()
    assert node.image is before


async def test_who_is_locked_out_is_let_in_whatever_became_of_the_first_user():
    node = FakeNode()
    closed = ClosedNode(node)
    await first_user(node, is_reset=True).run()
    assert await logged_in(node, "the first password")
    version = node.image.users["admin"].version
    closed.store.apply(
        PutUser(name="admin", version=version, verifiers=(VERIFIER,), is_superuser=False)
    )
    await first_user(node, password="found once more", is_reset=True).run()
    assert await logged_in(node, "found once more")
    closed.store.apply(DeleteUser(name="admin"))
    await first_user(node, password="and once again", is_reset=True).run()
    assert await logged_in(node, "and once again")


@pytest.mark.parametrize("error", [NoQuorumError, FeatureLevelError])
async def test_it_waits_for_a_quorum_and_for_the_others_release(error, caplog):
    node = FakeNode()
    node.errors["propose"] = error("not yet")
    began_ms = node.access.clock.ms

    class Patient(type(node.access.clock)):
        async def sleep(self, ms):
            self.ms += int(ms)
            if self.ms - began_ms >= 3 * BACKGROUND_RETRY_MS:
                node.errors.clear()

    node.access.clock.__class__ = Patient
    await first_user(node).run()
    assert node.image.users["admin"].is_superuser
    assert sum("waiting for the first user" in line for line in caplog.messages) == 1


async def test_what_cannot_be_is_said_and_stops_no_node(caplog):
    node = FakeNode()
    node.errors["propose"] = InvalidAccessError("no such name")
    await first_user(node).run()
    assert any("no first user" in line for line in caplog.messages)
    assert not [line for line in caplog.messages if "first password" in line]


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"short", "8 to 1024"), (b"\xff" * 9, "cannot read"), (b"tab\tin between", "printable")],
)
def test_a_file_that_holds_no_password_stops_the_start(tmp_path, content, told):
    file = tmp_path / "password"
    file.write_bytes(content)
    with pytest.raises(StartupError, match=told) as raised:
        read_password(file)
    assert "in between" not in raised.value.message
    with pytest.raises(StartupError, match="cannot read"):
        read_password(tmp_path / "nothing")


def test_white_space_around_a_password_is_not_part_of_it(tmp_path):
    file = tmp_path / "password"
    file.write_text("  a good password\n\n")
    assert read_password(file) == Secret("a good password")
