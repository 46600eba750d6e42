"""Random, mostly valid commands about access control and quotas."""

from dataclasses import dataclass
from random import Random

from milena.model import access as words
from milena.model.quotas import EVERY, QuotaKey
from milena.model.types import WallMs
from raft_meta.machine import commands as c
from raft_meta.machine.access.access import SCRAM_LEVEL
from raft_meta.machine.image import Acl, Grant, Image, ScramCredential

USERS = ("ann", "bob", "root")
NAMES = ("a", "a.b", "b", words.ANY_NAME)
HOSTS = (words.ANY_HOST, words.ANY_HOST, "10.0.0.1")
OPERATIONS = ("READ", "WRITE", "DESCRIBE", "ALL", "DELETE")


@dataclass
class AccessSource:
    """Generates the next command for an image."""

    rng: Random
    tokens_made: int = 0

    def next(self, image: Image) -> c.Command:
        makers = [self._mode, self._user, self._user, self._drop, self._token, self._forget]
        makers += [self._acls, self._acls, self._acls, self._quota]
        return self.rng.choice(makers)(image)

    def _mode(self, _: Image) -> c.Command:
        mode = self.rng.choice([*words.AccessMode, "open"])
        if self.rng.random() < 0.5:
            return c.InitAccess(name=self.rng.choice(USERS), verifier="h", access_mode=mode)
        return c.SetAccessMode(access_mode=mode)

    def _user(self, image: Image) -> c.Command:
        name = self.rng.choice(USERS)
        known = image.users.get(name)
        version = 0 if known is None else known.version
        return c.PutUser(
            name=name,
            version=version - (self.rng.random() < 0.1),
            verifiers=("h",) * self.rng.choice([0, 1, 1, 2, 3]),
            is_superuser=self.rng.random() < 0.5,
            revokes_tokens=self.rng.random() < 0.2,
            scram=self._scram(image),
            decoy_key=self.rng.randbytes(32),
        )

    def _scram(self, image: Image) -> tuple[ScramCredential, ...]:
        if image.feature_level < SCRAM_LEVEL and self.rng.random() < 0.9:
            return ()
        iterations = self.rng.choice([4096, 4096, 8192, 16_384, 16_384, 1])
        mechanisms = [word for word in words.ScramMechanism if self.rng.random() < 0.2]
        return tuple(random_scram(self.rng, word, iterations=iterations) for word in mechanisms)

    def _drop(self, _: Image) -> c.Command:
        return c.DeleteUser(name=self.rng.choice(USERS))

    def _token(self, image: Image) -> c.Command:
        self.tokens_made += 1
        name = self.rng.choice(USERS)
        owner = image.users.get(name)
        return c.CreateToken(
            token_id=f"{self.tokens_made:08x}",
            user=name,
            user_index=owner.created_index if owner else 1,
            secret_hash=bytes(32),
            note="n",
            grants=tuple(random_grant(self.rng) for _ in range(self.rng.choice([0, 0, 1, 2]))),
            expires_ms=WallMs(self.rng.choice([0, 5_000])),
            parent=self.rng.choice(["", "", *sorted(image.tokens)[-4:]]),
        )

    def _forget(self, image: Image) -> c.Command:
        known = sorted(image.tokens)
        return c.DeleteTokens(token_ids=tuple(self.rng.sample(known, min(1, len(known)))))

    def _acls(self, image: Image) -> c.Command:
        there = [acl for found in image.acls.values() for acl in found]
        return c.AlterAcls(
            added=tuple(random_acl(self.rng) for _ in range(self.rng.randint(0, 3))),
            removed=tuple(self.rng.sample(there, min(len(there), self.rng.choice([0, 0, 1, 2])))),
        )

    def _quota(self, _: Image) -> c.Command:
        keys = self.rng.sample([*QuotaKey, "none"], self.rng.choice([1, 1, 2]))
        return c.AlterQuota(
            user=self.rng.choice(["", EVERY, *USERS]),
            client_id=self.rng.choice(["", EVERY, "app"]),
            changes=tuple((key, self.rng.choice([None, 1, 7, 0])) for key in keys),
        )


def random_acl(rng: Random) -> Acl:
    """Return an entry about one of a few names, so that many entries affect each other."""
    return Acl(
        principal=rng.choice([words.USER_PREFIX + rng.choice(USERS), words.ANY_PRINCIPAL]),
        resource_type="TOPIC",
        pattern_type=rng.choice(list(words.PatternType)),
        name=rng.choice(NAMES),
        operation=rng.choice(OPERATIONS),
        permission=rng.choice(["ALLOW", "ALLOW", "DENY"]),
        host=rng.choice(HOSTS),
    )


def random_scram(
    rng: Random, mechanism: words.ScramMechanism, *, iterations: int = 4096
) -> ScramCredential:
    """Return a credential that no password fits."""
    return ScramCredential(
        mechanism=mechanism,
        iterations=iterations,
        salt=rng.randbytes(16),
        stored_key=rng.randbytes(mechanism.key_bytes),
        server_key=rng.randbytes(mechanism.key_bytes),
    )


def random_grant(rng: Random) -> Grant:
    """Return a random grant of a token."""
    return Grant(
        resource_type="TOPIC",
        pattern_type=rng.choice(list(words.PatternType)),
        name=rng.choice(NAMES),
        operations=tuple(rng.sample(OPERATIONS, rng.randint(1, 3))),
    )
