"""The first user of a cluster: a superuser whose password the operator configures, so that a new cluster is never open.

Every node that has the password proposes the user, and the first command counts. If operators have lost all access,
they start one node with ``reset_admin``, which sets the password again. This is no security hole: setting an option of
a node needs access to the node's disk.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from milena.model.access import AccessMode
from milena.model.clock import Clock
from milena.model.errors import (
    FateUnknownError,
    FeatureLevelError,
    InvalidAccessError,
    MilenaError,
    StaleVersionError,
    StartupError,
)
from milena.model.secret import Secret
from node.access.passwords import Passwords
from node.access.service import AccessService, check_password
from node.config.budgets import BACKGROUND_RETRY_MS, LONG_PROPOSE_MS
from node.metadata.store import MetadataStore
from raft_meta.machine.commands import InitAccess

logger = logging.getLogger(__name__)

_PASSING = (FateUnknownError, StaleVersionError, FeatureLevelError)
"""Errors that may go away: other nodes changed something, or some nodes still run an older release."""


def read_password(path: Path) -> Secret:
    """Return the password in a file, without surrounding white space.

    Raises:
        StartupError: the file cannot be read, or its content is not a valid password.
    """
    try:
        password = path.read_text(encoding="utf-8").strip()
        check_password(password)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise StartupError(f"cannot read admin_password_file {path}: {why}") from error
    except InvalidAccessError as error:
        raise StartupError(f"admin_password_file {path}: {error.message}") from error
    return Secret(password)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstUser:
    """Creates the first user, or resets its password. After that, it does nothing."""

    metadata: MetadataStore
    passwords: Passwords
    access: AccessService
    clock: Clock
    name: str
    password: Secret
    mode: AccessMode
    is_reset: bool

    async def run(self) -> None:
        """Try until the user exists, or until an error shows that it cannot be created."""
        is_waiting = False
        while True:
            try:
                await self._try()
            except MilenaError as error:
                if not (error.is_retriable or isinstance(error, _PASSING)):
                    # The cluster accepts no callers then, as the operator wanted.
                    logger.error("no first user name=%s reason=%s", self.name, error)
                    return
                if not is_waiting:
                    logger.warning("waiting for the first user name=%s reason=%s", self.name, error)
                is_waiting = True
                await self.clock.sleep(BACKGROUND_RETRY_MS)
            else:
                return

    async def _try(self) -> None:
        image = await self.metadata.current_image()
        if not image.users:
            command = InitAccess(
                name=self.name,
                verifier=await self.passwords.hash(self.password.reveal()),
                access_mode=self.mode,
            )
            if await self.metadata.propose(command, timeout_ms=LONG_PROPOSE_MS):
                logger.info("made the first user name=%s access_mode=%s", self.name, self.mode)
        elif self.is_reset:
            await self.access.put_user(
                self.name, password=self.password, is_superuser=True, keeps_previous=False
            )
            logger.warning(
                "gave a superuser its password again name=%s; take reset_admin away now", self.name
            )
