"""Authentication: SaslHandshake (17) and SaslAuthenticate (36). A client sends them before all other requests.

After a handshake of version 0, the message of SASL and its response are frames without headers (``raw_step``).
A refusal is delayed, as over HTTP, and is the last response on the connection.

Source: KIP-43 (mechanisms), KIP-84 (SCRAM), KIP-152 (SaslAuthenticate), KIP-368 (sessions that end).
"""

import logging

from http_api.protocol.kafka_codes import KafkaCode
from http_api.serving.places import pause
from milena.model.errors import MilenaError, UnauthenticatedError
from node.kafka.apis.api import Body, CloseConnectionError, KafkaCall, KafkaServices, serves
from node.kafka.identity import ConnectionIdentity, SaslStateError, SaslStep
from node.kafka.rights import PUBLIC
from node.kafka.sasl import MECHANISMS

logger = logging.getLogger(__name__)

SESSIONS_FROM = 1
"""The first version in which a session has an end that the client is told."""


@serves(17, "SaslHandshake", versions=(0, 1), access=PUBLIC)
async def _handshake(services: KafkaServices, call: KafkaCall) -> Body:
    del services
    request = call.message()
    is_known = call.identity.begin(request.mechanism, is_raw=call.version == 0)
    code = KafkaCode.NONE if is_known else KafkaCode.UNSUPPORTED_SASL_MECHANISM
    return call.answer({"error_code": call.note(code), "mechanisms": list(MECHANISMS)})


async def _step(services: KafkaServices, identity: ConnectionIdentity, message: bytes) -> SaslStep:
    """Take a message of SASL. Delay the response if it is a refusal.

    Raises:
        CloseConnectionError: the credentials cannot be checked now. The client connects again.
        SaslStateError, UnauthenticatedError: see ``ConnectionIdentity.authenticate``.
    """
    try:
        step = await identity.authenticate(
            message, services.metadata.image, services.clock.wall_ms()
        )
    except UnauthenticatedError:
        await pause(services.limits.bad_credentials_delay_ms / 1000)
        raise
    except MilenaError as error:
        # A code would be final for most clients. Without a response, they wait and connect again.
        await pause(services.limits.bad_credentials_delay_ms / 1000)
        raise CloseConnectionError(error) from error
    if identity.is_refused:
        await pause(services.limits.bad_credentials_delay_ms / 1000)
    return step


@serves(36, "SaslAuthenticate", versions=(0, 2), access=PUBLIC)
async def _authenticate(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    try:
        step = await _step(services, call.identity, bytes(request.auth_bytes))
    except SaslStateError as error:
        return _refusal(call, KafkaCode.ILLEGAL_SASL_STATE, str(error))
    except UnauthenticatedError as error:
        return _refusal(call, KafkaCode.SASL_AUTHENTICATION_FAILED, error.message)
    return call.answer(
        {
            "error_code": KafkaCode.NONE,
            "error_message": None,
            "auth_bytes": step.message,
            "session_lifetime_ms": step.lifetime_ms if call.version >= SESSIONS_FROM else 0,
        }
    )


def _refusal(call: KafkaCall, code: KafkaCode, message: str) -> Body:
    call.is_last = True
    return call.answer({"error_code": call.note(code), "error_message": message, "auth_bytes": b""})


async def raw_step(services: KafkaServices, identity: ConnectionIdentity, message: bytes) -> bytes:
    """Return the response to a message of SASL that came in a frame of its own.

    Raises:
        CloseConnectionError: the client is not let in. There is no code for that.
    """
    try:
        step = await _step(services, identity, message)
    except UnauthenticatedError as error:
        raise CloseConnectionError(error) from error
    # SCRAM has two messages, and a client that was refused a token sends one more.
    identity.is_raw = identity.is_signing_in
    return step.message


APIS = (_handshake, _authenticate)
