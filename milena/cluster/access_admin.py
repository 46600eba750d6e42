"""Administration of access control: users, tokens, quotas, access control entries and the mode, over HTTP."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict

from milena.cluster.access_views import (
    AccessView,
    AclEntry,
    AclFilter,
    NewToken,
    QuotaView,
    TokenGrant,
    TokenView,
    UserView,
    acl_entries,
    acl_json,
    new_token,
)
from milena.cluster.http import HttpSession, segment
from milena.fields import AnswerFields, Json, given
from milena.model.access import AccessMode
from milena.model.quotas import QuotaKey
from milena.model.secret import Secret


class AccessAdmin:
    """Administer the access control of a cluster; ``AdminClient.access`` returns an object of this class.

    Every method raises ``CredentialsRefusedError`` or ``NotPermittedError`` if the cluster does not permit the call.
    """

    def __init__(self, http: HttpSession, cluster_id: Callable[[], Awaitable[str]]) -> None:
        self._http = http
        self._cluster_id = cluster_id

    async def state(self) -> AccessView:
        """Return the mode, and the user that the cluster takes this client for."""
        return AnswerFields(await self._http.get("/access"), "access").read(AccessView)

    async def set_mode(self, mode: AccessMode) -> AccessView:
        """Set how strictly the cluster authenticates and authorizes its callers.

        Raises:
            AnswerError: no user could administer the cluster any more; the message says what to do first.
        """
        answer = await self._http.put("/access", {"mode": mode.value})
        return AnswerFields(answer, "access").read(AccessView)

    async def users(self) -> list[UserView]:
        """Return all users, in order of their names."""
        found = [row.read(UserView) for row in await self._all_of("/users", "users")]
        return sorted(found, key=lambda user: user.name)

    async def user(self, name: str) -> UserView:
        """Return one user.

        Raises:
            TargetNotFoundError: there is no user of this name.
        """
        return AnswerFields(await self._http.get(_user_path(name)), "user").read(UserView)

    async def put_user(
        self,
        name: str,
        *,
        password: Secret | None = None,
        is_superuser: bool | None = None,
        keep_previous: bool = False,
        revoke_tokens: bool = False,
        scram: bool | None = None,
    ) -> UserView:
        """Create a user, or change an existing one; None leaves a property unchanged.

        Args:
            name: letters, digits or ``. _ @ / + = -``.
            password: the user's password. A user without a password authenticates by tokens only.
            is_superuser: whether the user may do everything, regardless of access control entries.
            keep_previous: the former password stays valid beside the new one, until a third password is set.
            revoke_tokens: delete the user's tokens. By default they stay valid when the password changes.
            scram: whether Kafka clients may prove the password by SCRAM. True needs ``password``. None: a new password
                renews the SCRAM credentials that the user has.

        Raises:
            AnswerError: a bad name or password, or no superuser would be left; the message says what to change.
            TypeError: the password is no ``Secret``.
        """
        if password is not None and not isinstance(password, Secret):
            raise TypeError("password: wrap it, password=Secret(...), so that nothing shows it")
        body: dict[str, Json] = given(
            password=None if password is None else password.reveal(),
            is_superuser=is_superuser,
            keep_previous=keep_previous or None,
            revoke_tokens=revoke_tokens or None,
            scram=scram,
        )
        # A repeat with ``keep_previous`` would store the new password as the former one too, and lose the former one.
        answer = await self._http.put(_user_path(name), body, is_repeatable=not keep_previous)
        return AnswerFields(answer, "user").read(UserView)

    async def delete_user(self, name: str) -> None:
        """Delete a user, with the user's tokens and entries.

        Raises:
            TargetNotFoundError: there is no user of this name.
            AnswerError: the user is the last superuser, and the cluster authenticates its callers.
        """
        await self._http.delete(_user_path(name))

    async def tokens(self, user: str) -> list[TokenView]:
        """Return a user's tokens, the oldest first.

        Raises:
            TargetNotFoundError: there is no such user.
        """
        rows = await self._all_of(_tokens_path(user), "tokens")
        found = [row.read(TokenView) for row in rows]
        return sorted(found, key=lambda token: (token.created_ms, token.token_id))

    async def create_token(
        self,
        user: str,
        *,
        note: str | None = None,
        lifetime_ms: int | None = None,
        grants: Sequence[TokenGrant] | None = None,
    ) -> NewToken:
        """Create a token that acts for a user. A request with it needs the user's permission and the token's grant.

        The secret of the token is returned only once, by this call.

        Args:
            user: the user's name.
            note: a remark for people.
            lifetime_ms: how long the token is valid from now on; None leaves the choice to the cluster.
            grants: what the token permits, at least one; None: all that the user may do.

        Raises:
            TargetNotFoundError: there is no such user.
            AnswerError: a bad note, time or grant; the message says what to change.
        """
        listed: list[Json] | None = None if grants is None else [asdict(grant) for grant in grants]
        body: dict[str, Json] = given(note=note, lifetime_ms=lifetime_ms, grants=listed)
        return new_token(AnswerFields(await self._http.post(_tokens_path(user), body), "token"))

    async def delete_token(self, user: str, token_id: str) -> None:
        """Delete a token. It stops working at once.

        Raises:
            TargetNotFoundError: there is no such user, or the user has no token of this id.
        """
        await self._http.delete(f"{_tokens_path(user)}/{segment(token_id)}")

    async def quotas(self) -> list[QuotaView]:
        """Return all quotas, sorted by user and client id."""
        return [row.read(QuotaView) for row in await self._all_of("/quotas", "quotas")]

    async def alter_quota(
        self,
        limits: Mapping[QuotaKey, int | None],
        *,
        user: str | None = None,
        client_id: str | None = None,
    ) -> QuotaView:
        """Limit a user, the programs of a client id, or both; return all limits that apply to them now.

        Args:
            limits: new limits by key; None removes a limit. Keys that are not named keep their limits.
            user: a user's name. ``*`` means each user that has no quota of its own.
            client_id: the programs' client id; ``*`` means each client id that has no quota of its own.

        Raises:
            AnswerError: neither user nor client id is given, or a number is invalid; the message says what to change.
        """
        listed: dict[str, Json] = {key.value: amount for key, amount in limits.items()}
        body: dict[str, Json] = given(limits=listed, user=user, client_id=client_id)
        return AnswerFields(await self._http.put("/quotas", body), "quota").read(QuotaView)

    async def delete_quota(self, *, user: str | None = None, client_id: str | None = None) -> None:
        """Delete a quota; parameters as for ``alter_quota``. Do nothing if the quota does not exist."""
        await self._http.delete("/quotas", given(user=user, client_id=client_id))

    async def acls(self, wanted: AclFilter | None = None) -> list[AclEntry]:
        """Return the entries that match a filter, sorted; None: all."""
        params = {} if wanted is None else wanted.params()
        return acl_entries(await self._http.get(await self._acls_path(), params))

    async def add_acls(self, entries: Sequence[AclEntry]) -> None:
        """Add entries, all or none. Existing entries stay.

        Raises:
            AnswerError: an entry is invalid; the message says what to change.
        """
        data: list[Json] = [acl_json(entry) for entry in entries]
        await self._http.post(f"{await self._acls_path()}:batch", {"data": data})

    async def remove_acls(self, wanted: AclFilter) -> list[AclEntry]:
        """Remove the entries that match a filter; return them, sorted. An empty filter removes all."""
        return acl_entries(await self._http.delete(await self._acls_path(), wanted.params()))

    async def _all_of(self, path: str, field: str) -> list[AnswerFields]:
        """Return all rows of a list. A node sends pages; a node of an earlier release sends all rows at once."""
        rows: list[AnswerFields] = []
        while True:
            params = {"skip": str(len(rows))} if rows else None
            answer = AnswerFields(await self._http.get(path, params), field)
            page = list(answer.objects(field))
            rows += page
            if not page or len(rows) >= (answer.optional_integer("total") or 0):
                return rows

    async def _acls_path(self) -> str:
        return f"/v3/clusters/{await self._cluster_id()}/acls"


def _user_path(name: str) -> str:
    return f"/users/{segment(name)}"


def _tokens_path(user: str) -> str:
    return f"{_user_path(user)}/tokens"
