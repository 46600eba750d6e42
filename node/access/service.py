"""Users, tokens, access control entries and the mode: their changes, from any node.

Implements ``http_api.access.port.AccessPort``. Secrets are created here and shown once; the cluster stores only hashes.
The caller's right to make the change was checked before.
"""

import base64
import ipaddress
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from http_api.access.port import AclSelection, RequestedToken, UserCheck, unchecked
from milena.model.access import ANY_HOST, AccessMode, ScramMechanism
from milena.model.clock import Clock
from milena.model.errors import (
    FateUnknownError,
    FeatureLevelError,
    InvalidAccessError,
    NoQuorumError,
    StaleVersionError,
    TokenNotFoundError,
    UserNotFoundError,
)
from milena.model.quotas import QuotaKey
from milena.model.secret import Secret
from milena.model.turns import one_turn
from milena.model.types import WallMs
from node.access.callers import TOKEN_PREFIX, secret_hash
from node.access.passwords import Passwords
from node.config.budgets import LONG_PROPOSE_MS
from node.metadata.store import MetadataStore
from raft_meta.machine.access.access import (
    ACLS_PER_REQUEST_MAX,
    DECOY_KEY_BYTES,
    FAMILIES_LEVEL,
    SCRAM_LEVEL,
    TOKENS_PER_USER_MAX,
    acl_problems,
    check_room,
    expired_tokens,
)
from raft_meta.machine.commands import (
    AlterAcls,
    AlterQuota,
    CreateToken,
    DeleteTokens,
    DeleteUser,
    PutUser,
    SetAccessMode,
)
from raft_meta.machine.image import Acl, Image, ScramCredential, Token, User

ACLS_PER_TURN = 1_000
"""Number of entries that are compared in one turn of the loop."""
TRIES_MAX = 5
"""Largest number of attempts to change a user. An attempt fails if another client changes the user at the same time."""
LIFETIME_MS_MAX = 100 * 365 * 86_400_000
"""Longest lifetime of a token that expires, in ms. Later times could not be stored or shown."""
SECRET_BYTES = 32
ID_BYTES = 10
PASSWORD_LENGTH_MIN, PASSWORD_LENGTH_MAX = 8, 1024

_Change = SetAccessMode | PutUser | DeleteUser | CreateToken | DeleteTokens | AlterAcls | AlterQuota


def check_password(password: str) -> None:
    """Refuse a text that cannot be a password.

    Raises:
        InvalidAccessError: the text is too short, too long, or has characters that are not printable.
    """
    if not PASSWORD_LENGTH_MIN <= len(password) <= PASSWORD_LENGTH_MAX:
        raise InvalidAccessError(
            f"A password has {PASSWORD_LENGTH_MIN} to {PASSWORD_LENGTH_MAX} characters, not {len(password)}."
        )
    if not password.isprintable():
        raise InvalidAccessError("A password has printable characters only.")


@dataclass(eq=False, kw_only=True)
class AccessService:
    """Makes changes of access. Each change is one command of the metadata log."""

    metadata: MetadataStore
    passwords: Passwords
    clock: Clock
    random_bytes: Callable[[int], bytes]

    async def set_mode(self, mode: AccessMode) -> None:
        """Set whether the cluster asks for credentials, and enforces permissions."""
        await self._propose(SetAccessMode(access_mode=mode), f"set the access mode to {mode}")

    async def alter_quota(
        self, user: str, client_id: str, changes: Mapping[QuotaKey, int | None]
    ) -> None:
        """Set the limits of a user or client id; None removes a limit."""
        plain = tuple((key.value, amount) for key, amount in changes.items())
        command = AlterQuota(user=user, client_id=client_id, changes=plain)
        await self._propose(command, "change a quota")

    # -- users -----------------------------------------------------------------------------------

    def user(self, name: str) -> User:
        """Return the user from this node's image."""
        user = self.metadata.image.users.get(name)
        if user is None:
            raise UserNotFoundError(f"There is no user {name}.")
        return user

    async def put_user(
        self,
        name: str,
        *,
        password: Secret | None,
        is_superuser: bool | None,
        keeps_previous: bool,
        revokes_tokens: bool = False,
        scram: bool | None = None,
        check: UserCheck = unchecked,
    ) -> tuple[User, bool]:
        """Create a user, or change the given properties of it; return the user, and whether it is new."""
        verifier = None
        if revokes_tokens:
            await self._check_level("revoke tokens", FAMILIES_LEVEL)
        if scram:
            await self._check_level("make SCRAM credentials", SCRAM_LEVEL)
        if password is not None:
            check_password(password.reveal())
            verifier = await self.passwords.hash(password.reveal())
        elif scram:
            raise InvalidAccessError(
                "SCRAM credentials are made from the password, which is not stored: send it, too."
            )
        made: dict[ScramMechanism, ScramCredential] = {}
        for _ in range(TRIES_MAX):
            image = await self.metadata.current_image()
            present = image.users.get(name)
            # A change between this check and the command is noticed, because the version then differs.
            check(present)
            credentials = await self._credentials(present, password, made, scram=scram)
            verifiers = () if present is None else present.verifiers
            if verifier is not None:
                verifiers = (verifier, *(verifiers[:1] if keeps_previous else ()))
            was_superuser = present is not None and present.is_superuser
            command = PutUser(
                name=name,
                version=0 if present is None else present.version,
                verifiers=verifiers,
                is_superuser=was_superuser if is_superuser is None else is_superuser,
                revokes_tokens=revokes_tokens,
                scram=credentials,
                decoy_key=self._decoy_key(image, credentials),
            )
            if await self._changed(command):
                return self.user(name), present is None
        raise _kept_changing(name)

    async def _credentials(
        self,
        present: User | None,
        password: Secret | None,
        made: dict[ScramMechanism, ScramCredential],
        *,
        scram: bool | None,
    ) -> tuple[ScramCredential, ...]:
        """Return the SCRAM credentials of a user after a change. ``made``: those made of the new password so far."""
        former = () if present is None else present.scram
        if scram is False:
            return ()
        if password is None:
            return former
        # No credential of the former password stays valid.
        wanted = (
            list(ScramMechanism) if scram else [ScramMechanism(one.mechanism) for one in former]
        )
        for mechanism in wanted:
            if mechanism not in made:
                made[mechanism] = await self.passwords.scram(mechanism, password.reveal())
        return tuple(made[mechanism] for mechanism in sorted(wanted))

    async def alter_scram(
        self,
        name: str,
        *,
        put: Sequence[ScramCredential],
        removed: Collection[ScramMechanism],
        check: UserCheck = unchecked,
    ) -> None:
        """Put credentials in the place of those of the same mechanisms, and remove others; create a missing user."""
        await self._check_level("change SCRAM credentials", SCRAM_LEVEL)
        for _ in range(TRIES_MAX):
            image = await self.metadata.current_image()
            present = image.users.get(name)
            check(present)
            by_mechanism = {} if present is None else {one.mechanism: one for one in present.scram}
            for mechanism in removed:
                if by_mechanism.pop(mechanism, None) is None:
                    raise UserNotFoundError(
                        f"There is no user {name} with {mechanism} credentials."
                    )
            by_mechanism |= {one.mechanism: one for one in put}
            credentials = tuple(by_mechanism[mechanism] for mechanism in sorted(by_mechanism))
            command = PutUser(
                name=name,
                version=0 if present is None else present.version,
                verifiers=() if present is None else present.verifiers,
                is_superuser=present is not None and present.is_superuser,
                scram=credentials,
                decoy_key=self._decoy_key(image, credentials),
            )
            if await self._changed(command):
                return
        raise _kept_changing(name)

    async def _changed(self, command: PutUser) -> bool:
        """Change a user; return False if another client has changed it at the same time."""
        try:
            await self._propose(command, f"change user {command.name}")
        except (StaleVersionError, UserNotFoundError):
            return False
        return True

    def _decoy_key(self, image: Image, credentials: Sequence[ScramCredential]) -> bytes:
        """Return the key that the cluster needs with its first SCRAM credentials; else nothing."""
        is_needed = credentials and not image.scram_decoy_key
        return self.random_bytes(DECOY_KEY_BYTES) if is_needed else b""

    async def delete_user(self, name: str) -> None:
        """Delete a user, its tokens, and the access control entries that name it."""
        await self._propose(DeleteUser(name=name), f"delete user {name}")

    # -- tokens ----------------------------------------------------------------------------------

    def tokens_of(self, name: str) -> Sequence[Token]:
        """Return the user's tokens, the oldest first."""
        self.user(name)
        image = self.metadata.image
        return sorted(
            (image.tokens[token_id] for token_id in image.tokens_of.get(name, ())),
            key=lambda token: (token.created_ms, token.token_id),
        )

    async def create_token(self, name: str, new: RequestedToken) -> tuple[Token, Secret]:
        """Create a token for a user; return it, and the secret text that clients send."""
        image = await self.metadata.current_image()
        user = image.users.get(name)
        if user is None:
            raise UserNotFoundError(f"There is no user {name}.")
        self._check_room(image, name)
        token_id = base64.b32encode(self.random_bytes(ID_BYTES)).decode().lower()
        secret = base64.urlsafe_b64encode(self.random_bytes(SECRET_BYTES)).decode().rstrip("=")
        lifetime_ms = new.lifetime_ms
        command = CreateToken(
            token_id=token_id,
            user=name,
            user_index=user.created_index,
            secret_hash=secret_hash(secret),
            note=new.note,
            grants=new.grants,
            expires_ms=_end(self.clock.wall_ms(), lifetime_ms, new.expires_ms_max),
            parent=new.parent if image.feature_level >= FAMILIES_LEVEL else "",
        )
        await self._propose(command, f"make a token of user {name}")
        token = self.metadata.image.tokens.get(token_id)
        if token is None:
            raise TokenNotFoundError(f"Token {token_id} was deleted as soon as it was made.")
        return token, Secret(f"{TOKEN_PREFIX}{token_id}_{secret}")

    def _check_room(self, image: Image, name: str) -> None:
        """Refuse a token above the limit before it is proposed: below ``FAMILIES_LEVEL``, ``apply`` does not."""
        own = image.tokens_of.get(name, ())
        if len(own) >= TOKENS_PER_USER_MAX:
            tokens = (image.tokens[token_id] for token_id in own)
            if not expired_tokens(tokens, self.clock.wall_ms()):
                check_room(own, name)

    async def _check_level(self, what: str, level: int) -> None:
        present = self.metadata.image.feature_level
        if present < level:
            present = (await self.metadata.current_image()).feature_level
        if present < level:
            raise FeatureLevelError(
                f"to {what} needs feature level {level}, and the cluster is at {present}, to which it rises "
                "by itself once every node is of a release that supports it; nothing was changed"
            )

    async def delete_token(self, name: str, token_id: str) -> None:
        """Delete a token of this user."""
        token = self.metadata.image.tokens.get(token_id)
        if token is None:
            token = (await self.metadata.current_image()).tokens.get(token_id)
        if token is None or token.user != name:
            raise TokenNotFoundError(f"User {name} has no token {token_id}.")
        await self._propose(DeleteTokens(token_ids=(token_id,)), f"delete token {token_id}")

    # -- access control entries ------------------------------------------------------------------

    async def acls(self, wanted: AclSelection) -> Sequence[Acl]:
        """Return the matching entries, ordered by principal."""
        acls = self.metadata.image.acls
        found: list[Acl] = []
        looked_at = 0
        for principal in [wanted.principal] if wanted.principal is not None else sorted(acls):
            own = acls.get(principal, ())
            for start in range(0, len(own), ACLS_PER_TURN):
                part = own[start : start + ACLS_PER_TURN]
                found += [acl for acl in part if wanted.fits(acl)]
                looked_at += len(part)
                if looked_at >= ACLS_PER_TURN:
                    looked_at = 0
                    await one_turn()
        return found

    async def add_acls(self, acls: Iterable[Acl]) -> None:
        """Add access control entries. Existing entries stay.

        Raises:
            InvalidAccessError: an entry is not valid; the message says what to change.
        """
        added = tuple(acls)
        for acl in added:
            check_acl(acl)
        await self._propose(AlterAcls(added=added, removed=()), "add access control entries")

    async def remove_acls(self, wanted: Iterable[AclSelection]) -> list[Sequence[Acl]]:
        """Remove the access control entries that pass a filter; return those of each, once."""
        await self.metadata.current_image()
        # Thousands of filters that each name a resource must not look at all entries each.
        by_name: dict[str, list[Acl]] = {}
        for acl in await self.acls(AclSelection()):
            by_name.setdefault(acl.name, []).append(acl)
        removed: dict[Acl, None] = {}
        found: list[Sequence[Acl]] = []
        for one in wanted:
            # Without a turn for each, thousands of filters that each look at few entries would have the loop alone.
            await one_turn()
            if one.name is None or one.is_match:
                fitting = await self.acls(one)
            else:
                fitting = [acl for acl in by_name.get(one.name, ()) if one.fits(acl)]
            found.append([acl for acl in fitting if acl not in removed])
            removed |= dict.fromkeys(found[-1])
        every = tuple(removed)
        for start in range(0, len(every), ACLS_PER_REQUEST_MAX):
            some = every[start : start + ACLS_PER_REQUEST_MAX]
            await self._propose(AlterAcls(added=(), removed=some), "remove access control entries")
        return found

    async def _propose(self, command: _Change, what: str) -> object:
        try:
            return await self.metadata.propose(command, timeout_ms=LONG_PROPOSE_MS)
        except NoQuorumError as error:
            raise NoQuorumError(f"cannot {what}: {error.message}; nothing was changed") from error
        except FateUnknownError as error:
            raise FateUnknownError(f"{what}: {error.message}; it may yet happen") from error


def _kept_changing(name: str) -> StaleVersionError:
    return StaleVersionError(f"Others keep changing user {name}; nothing was changed.")


def check_acl(acl: Acl) -> None:
    """Refuse an entry that is not valid, or has a host that no caller can have.

    ``apply`` accepts more hosts, because entries that older releases stored must stay valid.

    Raises:
        InvalidAccessError: the message says what to change.
    """
    for problem in acl_problems(acl):
        raise InvalidAccessError(problem)
    if acl.host == ANY_HOST:
        return
    try:
        ipaddress.ip_address(acl.host)
    except ValueError:
        raise InvalidAccessError(
            f"{acl.host!r} is not a host: an IP address, or {ANY_HOST}"
        ) from None


def _end(now_ms: int, lifetime_ms: int | None, most_ms: int) -> WallMs:
    """Return when a token expires (wall ms); 0 for never. ``most_ms``: the latest allowed time; 0 for none.

    Raises:
        InvalidAccessError: the lifetime is above ``LIFETIME_MS_MAX``.
    """
    if lifetime_ms is not None and lifetime_ms > LIFETIME_MS_MAX:
        raise InvalidAccessError(
            f"lifetime_ms {lifetime_ms} is above {LIFETIME_MS_MAX}, which is 100 years; leave it out for a token "
            "without an end"
        )
    wanted = 0 if lifetime_ms is None else now_ms + lifetime_ms
    return WallMs(min(wanted or most_ms, most_ms) if most_ms else wanted)
