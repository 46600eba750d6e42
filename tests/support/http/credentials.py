"""Credentials of a fake node with access control: valid ones, and ones with a single fault."""

from collections.abc import Mapping
from typing import NamedTuple

import argon2
from aiohttp import encode_basic_auth

from milena.model.access import AccessMode
from milena.model.types import WallMs
from node.access.callers import secret_hash
from raft_meta.machine.commands import (
    AlterAcls,
    CreateToken,
    DeleteTokens,
    InitAccess,
    PutUser,
)
from raft_meta.machine.image import Acl, Grant
from tests.support.fakes.ports import FakeNode

PASSWORD = "a good password"
QUICK_HASHER = argon2.PasswordHasher(memory_cost=8, time_cost=1, parallelism=1)
"""A cheap hash. Other tests check the cost of the real one."""
VERIFIER = QUICK_HASHER.hash(PASSWORD)
SECRET = "s3cret"

Headers = Mapping[str, str]


def basic(name: str, password: str = PASSWORD) -> Headers:
    return {"Authorization": encode_basic_auth(name, password)}


def bearer(token_id: str, secret: str = SECRET) -> Headers:
    return {"Authorization": f"Bearer mln_{token_id}_{secret}"}


class Allowed(NamedTuple):
    """A permission on ``resource``, which is a type and a name."""

    operation: str
    kind: str
    name: str


def entry(principal: str, what: Allowed, *, host: str = "*", permission: str = "ALLOW") -> Acl:
    return Acl(
        principal=principal,
        resource_type=what.kind,
        pattern_type="LITERAL",
        name=what.name,
        operation=what.operation,
        permission=permission,
        host=host,
    )


def grant(
    *operations: str, kind: str = "TOPIC", name: str = "orders", pattern: str = "LITERAL"
) -> Grant:
    return Grant(resource_type=kind, pattern_type=pattern, name=name, operations=operations)


class ClosedNode:
    """A fake node with access control, a superuser ``root``, and further users that tests create."""

    def __init__(self, node: FakeNode, mode: AccessMode = AccessMode.REQUIRED) -> None:
        self.node = node
        self.store = node.access.store
        self.store.apply(InitAccess(name="root", verifier=VERIFIER, access_mode=mode))

    def user(self, name: str, *allowed: Allowed, is_superuser: bool = False) -> Headers:
        """Create a user with these permissions; return its headers."""
        self.store.apply(
            PutUser(name=name, version=0, verifiers=(VERIFIER,), is_superuser=is_superuser)
        )
        self.allow(name, *allowed)
        return basic(name)

    def allow(self, name: str, *allowed: Allowed) -> None:
        added = tuple(entry(f"User:{name}", what) for what in allowed)
        self.store.apply(AlterAcls(added=added, removed=()))

    def deny(self, name: str, what: Allowed) -> None:
        denied = entry(f"User:{name}", what, permission="DENY")
        self.store.apply(AlterAcls(added=(denied,), removed=()))

    def take(self, name: str) -> None:
        """Delete all access entries of a user."""
        acls = self.node.image.acls.get(f"User:{name}", ())
        self.store.apply(AlterAcls(added=(), removed=tuple(acls)))

    def token(
        self, user: str, token_id: str = "token123", *grants: Grant, lifetime_ms: int = 0
    ) -> Headers:
        """Create a token of a user; return its headers."""
        now_ms = self.node.access.clock.wall_ms()
        self.store.apply(
            CreateToken(
                token_id=token_id,
                user=user,
                user_index=self.node.image.users[user].created_index,
                secret_hash=secret_hash(SECRET),
                note="",
                grants=grants,
                expires_ms=WallMs(now_ms + lifetime_ms if lifetime_ms else 0),
            )
        )
        return bearer(token_id)

    def revoke(self, token_id: str = "token123") -> None:
        self.store.apply(DeleteTokens(token_ids=(token_id,)))

    def refused(self) -> dict[str, Headers]:
        """Return credentials that must be refused, by their fault."""
        self.user("eve")
        expired = self.token("eve", "expired1", lifetime_ms=1)
        revoked = self.token("eve", "revoked1")
        self.revoke("revoked1")
        self.node.access.clock.ms += 1
        return {
            "none": {},
            "no scheme": {"Authorization": "mln_token123_s3cret"},
            "another scheme": {"Authorization": "Digest x"},
            "no base64": {"Authorization": "Basic \N{SNOWMAN}".encode().decode("latin-1")},
            "no colon": {"Authorization": "Basic cm9vdA=="},
            "wrong password": basic("root", "a wrong password"),
            "no such user": basic("nobody"),
            "no such token": bearer("nothere1"),
            "wrong secret": bearer("expired1", "another"),
            "expired token": expired,
            "revoked token": revoked,
            "empty": {"Authorization": ""},
        }
