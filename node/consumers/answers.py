"""Whether the last answer to a REST consumer has reached its client: the node that carried it is asked."""

import logging

from milena.model.errors import MilenaError
from node.consumers import wire
from node.consumers.session import ConsumerSession
from node.peers.codec import bool_field
from node.peers.port import Peers

logger = logging.getLogger(__name__)

RETURNED_MS = 1_000
"""How long a node may take to say whether it has returned an answer. One that cannot be heard has not."""


class Answers:
    """See the module."""

    def __init__(self, node_id: int, peer: Peers) -> None:
        self._node_id = node_id
        self._peer = peer

    async def prove(self, session: ConsumerSession, asker: int | None) -> None:
        """Find out whether the last answer has arrived, now that its client is back.

        It has if the client asks on the same node: that is alive, and says so when a client hangs up. Another node may
        have ended with the answer in its hands; then the client is given those records again.
        """
        call_id = session.cursor.unproven
        if not call_id or session.under_way == call_id:
            return
        node_id = wire.node_of(call_id)
        has_returned = node_id in (self._node_id, asker)
        if node_id is not None and not has_returned:
            try:
                answer, _ = await self._peer.call(
                    node_id,
                    wire.RETURNED,
                    {"group": session.key[0], "instance": session.key[1], "call": call_id},
                    timeout_ms=RETURNED_MS,
                )
                has_returned = bool_field(answer, "has")
            except MilenaError as error:
                logger.debug("node_id=%d does not say what it returned: %s", node_id, error)
        if session.cursor.unproven == call_id and session.under_way != call_id:
            if has_returned:
                session.cursor.prove()
            else:
                session.cursor.take_back(call_id)
