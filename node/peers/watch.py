"""How long a peer may be silent: the rounds of one link's watch. Pure; ``node.peers.link`` drives it.

While a link is in use its dialer lets a round pass every ``ping_ms`` and asks for a sign of life in each. Rounds are
counted, not measured: a stall of our own is one round. A link that nobody uses costs nothing.

What silence means, in its order:

1. *doubtful*: new calls are held back. What was never sent can be sent elsewhere, while what was sent to a peer that
   has gone is of unknown fate.
2. *silent*: waiting calls fail, new ones are refused.
3. *lost*: the link itself is given up.
"""

from dataclasses import dataclass

from node.peers.codec import PeerChannel


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """Of one channel. Rounds without a byte after which a peer is silent, and after which it is lost."""

    ping_ms: int
    silent_rounds: int
    lost_rounds: int
    holds_back: bool = False
    """Whether a doubtful peer gets no new calls; heartbeats and fetches are what tells that it is back."""


RHYTHMS = {
    # Clients wait on calls, and may turn to another node within a second. Short rounds, because silence begins anywhere
    # within one.
    PeerChannel.RPC: Rhythm(ping_ms=100, silent_rounds=8, lost_rounds=40, holds_back=True),
    # A controller that was cut off and is back must hear of its brokers within a session.
    PeerChannel.CONTROL: Rhythm(ping_ms=250, silent_rounds=4, lost_rounds=20),
    # Silent by nature for as long as it may wait for records, and nobody waits for it.
    PeerChannel.FETCH: Rhythm(ping_ms=1_000, silent_rounds=4, lost_rounds=20),
}

WATCHED_MS = 10_000
"""After its last call a link is still watched: who is called often is known to be silent before the next call."""
PATIENCE_MAX = 3
"""Times the silent rounds of a rhythm that a slow peer may come to be waited for."""
CALM_ROUNDS = 10
"""Rounds without a silence that take one round off a learnt patience."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The demands of a round."""

    is_last: bool
    """The link is not in use any more: the watch may rest."""
    is_lost: bool = False
    has_failed: bool = False
    """Waiting calls fail."""
    wants_ping: bool = False


class PeerWatch:
    """Counts silent rounds of one link.

    Invariants:
        silent_rounds <= patience <= PATIENCE_MAX * silent_rounds of the rhythm.
    """

    def __init__(self, rhythm: Rhythm) -> None:
        self.rhythm = rhythm
        self.patience = rhythm.silent_rounds
        """Silent rounds after which the peer is silent: learnt from how long it was silent and lived."""
        self._silent = 0
        self._calm = 0
        self._unused = 0
        self._has_heard = False
        self._has_asked = False

    @property
    def is_silent(self) -> bool:
        """Nobody should wait on this peer."""
        return self._silent >= self.patience and not self._has_heard

    @property
    def is_doubtful(self) -> bool:
        """New calls should wait for a sign of life."""
        return (
            self.rhythm.holds_back
            and self.rhythm.silent_rounds // 2 <= self._silent < self.patience
            and not self._has_heard
        )

    @property
    def silent_ms(self) -> int:
        """How long the silence has lasted, in rounds that were counted."""
        return self._silent * self.rhythm.ping_ms

    def heard(self) -> None:
        """A byte came."""
        self._has_heard = True

    def asked(self) -> None:
        """A call was sent."""
        self._unused, self._has_asked = 0, True

    def end_round(self, *, is_awaited: bool) -> Round:
        """A round is over; ``is_awaited``: some call waits for its answer."""
        has_heard, self._has_heard = self._has_heard, False
        has_asked, self._has_asked = self._has_asked, False
        if has_heard:
            self._learn_patience()
            self._silent = 0
        else:
            self._silent += 1
        self._unused += 1
        is_wanted = self._unused * self.rhythm.ping_ms < WATCHED_MS
        if not (is_awaited or self._silent or is_wanted):
            return Round(is_last=True)
        return Round(
            is_last=False,
            is_lost=self._silent >= self.rhythm.lost_rounds,
            has_failed=self._silent >= self.patience,
            # Also of a peer that was heard just now, unless a call asked it something: what is not asked for in this
            # round would not be missed in the next.
            wants_ping=not (has_heard and has_asked),
        )

    def _learn_patience(self) -> None:
        """The peer spoke: one that did so within twice the patience was only slow, a longer silence teaches nothing."""
        least = self.rhythm.silent_rounds
        if self.patience <= self._silent <= 2 * self.patience:
            self.patience = min(2 * self._silent, PATIENCE_MAX * least)
            self._calm = 0
        elif self.patience > least:
            self._calm += 1
            if self._calm >= CALM_ROUNDS:
                self.patience -= 1
                self._calm = 0
