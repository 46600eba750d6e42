"""Membership in a consumer group, from one member's view: its state, its heartbeats, and its next steps (pure).

The member reconciles, as in KIP-848. The group's coordinator tells it which partitions it may read (``assignment``).
The partitions that it reads are ``owned``.

Partitions that are owned but not assigned must be given up. The shell (``rebalance``) lets the application finish with
them, commits, and calls ``give_back``. The next heartbeat lists the partitions that are still owned. Only then the
coordinator assigns the others to another member. So partitions that are assigned but not owned can be taken at once.

A membership ends when the group has removed the member, or when the member leaves because its application hangs. Then
all owned partitions are *lost*: other members may read them already, so their offsets must not be committed. The shell
tells the application and then calls ``forget``. After that, the member joins again, under another id. So late responses
to the former membership cannot be mistaken for those to the new one.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass

from milena.consuming.options import ConsumerOptions, Subscription
from milena.records import TopicPartition

JOINING = 0
LEAVING = -1
NOTHING: frozenset[TopicPartition] = frozenset()

FIRST_INTERVAL_MS = 1_000
"""The interval of heartbeats in ms, until the coordinator's first response sets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A heartbeat. ``member_epoch`` 0 joins, -1 leaves, and any other value is the last epoch received."""

    member_id: str
    member_epoch: int
    owned: frozenset[TopicPartition]
    subscription: Subscription | None = None
    """The subscription; None if it has not changed."""
    instance_id: str | None = None
    client_id: str = ""
    assignor: str | None = None
    session_timeout_ms: int | None = None
    rebalance_timeout_ms: int | None = None
    wait_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatAnswer:
    """The coordinator's response to a heartbeat."""

    member_id: str
    member_epoch: int
    generation: int
    heartbeat_interval_ms: int
    assignment: frozenset[TopicPartition]


class GroupMembership:
    """The state of one member. Owned by its consumer's loop.

    Invariants:
        - ``owned`` grows only by ``take`` and only by assigned partitions; it shrinks by ``give_back`` and ``forget``;
        - while ``is_lost``, there is no heartbeat to send, and nothing to take or to give back.
    """

    def __init__(
        self, options: ConsumerOptions, subscription: Subscription, new_id: Callable[[], str]
    ) -> None:
        self._options = options
        self._new_id = new_id
        self._subscription = subscription
        self._is_subscription_told = False
        self.member_id = new_id()
        self.member_epoch = JOINING
        self.generation = 0
        self.interval_ms = FIRST_INTERVAL_MS
        self.assignment = NOTHING
        self.owned = NOTHING
        self.is_lost = False
        self._is_gone = False

    @property
    def is_member(self) -> bool:
        """True if the group knows this member."""
        return self.member_epoch > JOINING

    @property
    def is_due(self) -> bool:
        """True if the shell has a step to do: partitions are lost, must be given up, or may be taken."""
        return self.is_lost or (self.is_member and self.owned != self.assignment)

    @property
    def revoked(self) -> frozenset[TopicPartition]:
        """The partitions that the member owns and must give up."""
        return NOTHING if self.is_lost or not self.is_member else self.owned - self.assignment

    @property
    def added(self) -> frozenset[TopicPartition]:
        """The partitions that are assigned to the member, and that it does not own yet."""
        return NOTHING if self.is_lost or not self.is_member else self.assignment - self.owned

    @property
    def _spoken_for(self) -> frozenset[TopicPartition]:
        """The partitions that a heartbeat must list: those that the member owns, or may take at any moment.

        If a heartbeat left out an assigned partition, the coordinator would assume that the member has given it up.
        """
        return self.owned | self.assignment

    # -- heartbeats and responses ------------------------------------------------------------------

    def beat(self, *, is_held: bool) -> Beat | None:
        """Return the next heartbeat; None if partitions are lost and the application was not told yet (``forget``).

        ``is_held``: the coordinator should delay its response until the assignment changes.
        """
        if self.is_lost:
            return None
        if self.is_member and self._is_subscription_told:
            return Beat(
                member_id=self.member_id,
                member_epoch=self.member_epoch,
                owned=self._spoken_for,
                wait_ms=self.interval_ms if is_held else 0,
            )
        return Beat(
            member_id=self.member_id,
            member_epoch=self.member_epoch,
            owned=self._spoken_for,
            subscription=self._subscription,
            instance_id=self._options.instance_id,
            client_id=self._options.client_id,
            assignor=self._options.assignor,
            session_timeout_ms=self._options.session_timeout_ms,
            rebalance_timeout_ms=self._options.rebalance_timeout_ms,
        )

    def farewell(self) -> Beat | None:
        """Return the heartbeat that leaves the group; None if the group does not know this member.

        A member with an instance id does not leave, so that the restarted program gets its partitions back.
        """
        if self.is_lost or not self.is_member or self._options.instance_id is not None:
            return None
        return Beat(member_id=self.member_id, member_epoch=LEAVING, owned=NOTHING)

    def on_answer(self, beat: Beat, answer: BeatAnswer) -> bool:
        """Apply the response to ``beat``; return whether it changes anything.

        A response to an earlier membership is ignored.
        """
        if self.is_lost or beat.member_epoch == LEAVING or beat.member_id != self.member_id:
            return False
        if answer.member_epoch < self.member_epoch:
            # The response has an older epoch than one that was received before. Ignore it.
            return False
        before = self.member_epoch, self.assignment
        self.member_id = answer.member_id
        self.member_epoch = answer.member_epoch
        self.generation = answer.generation
        self.interval_ms = max(1, answer.heartbeat_interval_ms)
        self.assignment = answer.assignment
        if beat.subscription == self._subscription:
            self._is_subscription_told = True
        return before != (self.member_epoch, self.assignment)

    def lose(self, *, is_gone: bool = True) -> None:
        """Note that the group has removed this member, or that it has left.

        ``is_gone`` is False if the member only stopped its heartbeats, so that the group may still know the member.
        """
        self.is_lost = True
        self._is_gone = is_gone
        self.assignment = NOTHING

    # -- changes -----------------------------------------------------------------------------------

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics to which the member subscribes by name; empty with a pattern."""
        return self._subscription.topics

    def subscribe(self, subscription: Subscription) -> None:
        """Change the subscription."""
        self._subscription = subscription
        self._is_subscription_told = False

    def take(self, partitions: Set[TopicPartition]) -> None:
        """Add partitions that the application reads from now on."""
        assert partitions <= self.added, (partitions, self.assignment, self.owned)
        self.owned |= partitions

    def give_back(self, partitions: Set[TopicPartition]) -> None:
        """Remove partitions with which the application is done; the next heartbeat no longer lists them."""
        self.owned -= partitions

    def forget(self) -> None:
        """Forget the lost partitions, after the application was told. The next heartbeat joins as a new member.

        There is one exception: a member with an instance id that only stopped its heartbeats continues with its former
        id and epoch. If another process has taken over the instance id since, that heartbeat is refused. Joining as a
        new member would fence the other process.
        """
        if self._is_gone:
            self.member_id = self._new_id()
            self.member_epoch = JOINING
        self.owned = self.assignment = NOTHING
        self._is_subscription_told = False
        self.is_lost = False
