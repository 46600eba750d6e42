"""The client's copy of the cluster's metadata, and when it is refreshed.

Any node returns a view of the whole cluster, which is kept for ``max_age_ms``. The view is refreshed earlier if a
caller found it wrong: a topic is missing, or a node does not lead a partition. Callers that need a view during a
refresh share its result. If no node responds, the old view stays in use.
"""

import asyncio
import logging
from collections.abc import Callable

from milena.cluster.admin import cluster_view, topic_view
from milena.cluster.http import HttpCall, HttpSession, json_of, segment
from milena.cluster.view import ClusterView, TopicView
from milena.errors import ClientError, NeverReachedError, UnexpectedAnswerError
from milena.model.clock import Clock

logger = logging.getLogger(__name__)

MAX_AGE_MS = 30_000
"""Age at which the view is refreshed even if nothing failed, in ms. New partitions are noticed by then."""

ASK_INTERVAL_MS = 100
"""The shortest interval between two refreshes of a wrong view, in ms, because many callers may report it at once."""

REFRESH_TIMEOUT_S = 3.0
"""The timeout of one node. After it, another node is asked."""

Listener = Callable[[ClusterView], None]


class MetadataCache:
    """The newest view of the cluster that a node has sent. Owned by one event loop."""

    def __init__(self, http: HttpSession, clock: Clock, *, max_age_ms: float = MAX_AGE_MS) -> None:
        self._http = http
        self._clock = clock
        self._max_age_ms = max_age_ms
        self._view: ClusterView | None = None
        self._topics: dict[str, TopicView] = {}
        self._urls: dict[int, str] = {}
        self._seen_ms = 0.0
        self._asked_ms = 0.0
        self._is_stale = True
        self._source: str | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._listeners: list[Listener] = []
        self._left_out: tuple[str, ...] = ()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with each new view; return a function that removes the listener."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    @property
    def is_due(self) -> bool:
        """True if the view must be refreshed: it is missing or older than ``max_age_ms``, or a caller found it wrong.

        A wrong view is not requested again within ``ASK_INTERVAL_MS``.
        """
        now_ms = self._clock.now_ms()
        if self._is_stale:
            return self._view is None or now_ms - self._asked_ms >= ASK_INTERVAL_MS
        return now_ms - self._seen_ms > self._max_age_ms

    async def view(self) -> ClusterView:
        """Return the view of the cluster; it is older than ``max_age_ms`` only if no node responds.

        Raises:
            UnreachableError: no node has ever responded.
        """
        if self.is_due:
            try:
                await self.refresh()
            except ClientError:
                if self._view is None:
                    raise
        assert self._view is not None, "a refresh that returns has a view"
        return self._view

    async def topic(self, name: str) -> TopicView:
        """Return a topic with its partitions and their leaders.

        Raises:
            TargetNotFoundError: the cluster's quorum says that there is no such topic.
            UnreachableError: no node responded.
        """
        await self.view()
        if name not in self._topics:
            await self.refresh()
        if name not in self._topics:
            # The node that sent the view may not know a new topic yet. This request is answered with 404 only after
            # the node has asked the quorum.
            call = HttpCall(method="GET", path=f"/topics/{segment(name)}", is_repeatable=True)
            found = topic_view(json_of(await self._http.send(call), f"topic {name}"))
            self._topics.setdefault(name, found)
            self._is_stale = True
        return self._topics[name]

    async def partition_count(self, name: str) -> int:
        """Return the number of a topic's partitions. It raises the errors of ``topic``."""
        return len((await self.topic(name)).partitions)

    async def leader_url(self, topic: str, partition: int) -> str:
        """Return the URL of a partition's leader, or of any node while the leader is unknown.

        Raises:
            NeverReachedError: no node has ever responded.
        """
        try:
            if self.is_due:
                await self.view()
        except NeverReachedError:
            raise
        except ClientError:
            return self._http.routes.best(self._clock.now_ms())
        found = self._topics.get(topic)
        if found is not None and 0 <= partition < len(found.partitions):
            url = self._urls.get(found.partitions[partition].leader or 0)
            if url is not None:
                return url
        return self._http.routes.best(self._clock.now_ms())

    def leader_epoch(self, topic: str, partition: int) -> int | None:
        """Return the leader epoch of a partition in the current view; None if the partition is not in the view."""
        found = self._topics.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        return found.partitions[partition].leader_epoch

    def mark_stale(self, topic: str | None = None) -> None:
        """Note that the view is wrong. The next caller refreshes the whole view, whatever ``topic`` says."""
        del topic
        self._is_stale = True

    async def refresh(self) -> None:
        """Refresh now. Callers during a refresh share its result.

        Raises:
            UnreachableError: no node responded.
        """
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
        # Without the shield, cancelling one caller would cancel the refresh for all.
        await asyncio.shield(self._refreshing)

    async def look_again(self, least_age_ms: float) -> None:
        """Refresh from another node than last time, unless a refresh started less than ``least_age_ms`` ago.

        Failures are logged, and not raised.
        """
        if self._clock.now_ms() - self._asked_ms < least_age_ms:
            return
        self._is_stale = True
        try:
            await self.refresh()
        except ClientError as error:
            logger.debug("metadata not renewed: %s", error)

    async def close(self) -> None:
        """Cancel a refresh that is in progress."""
        task, self._refreshing = self._refreshing, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _refresh(self) -> None:
        was_wrong, self._is_stale = self._is_stale, False
        self._asked_ms = self._clock.now_ms()
        call = HttpCall(
            # With ``since=0``, the node sends the view that it has, and does not ask the quorum. A leader that still
            # serves must be found even without a majority.
            method="GET",
            path="/metadata?since=0",
            timeout_s=REFRESH_TIMEOUT_S,
            is_repeatable=True,
        )
        try:
            answer = await self._http.send(
                call, preferred=self._other_node() if was_wrong else None
            )
            view = cluster_view(json_of(answer, "metadata"))
            _check_partitions(view)
        except BaseException:
            self._is_stale = True
            raise
        self._source = answer.url
        self._seen_ms = self._clock.now_ms()
        known = self._view
        if (
            known is not None
            and known.cluster_id == view.cluster_id
            and view.version < known.version
        ):
            # This node's view is older than the one that is known already.
            return
        self._adopt(view)

    def _other_node(self) -> str | None:
        """Return a node other than the one that sent the wrong view: a node that is cut off never corrects its view."""
        order = self._http.routes.order(None, self._clock.now_ms())
        return next((url for url in order if url != self._source), None)

    def _adopt(self, view: ClusterView) -> None:
        self._view = view
        self._topics = {topic.name: topic for topic in view.topics}
        live = [node for node in view.nodes if node.is_live]
        self._urls = {node.node_id: node.url for node in live}
        self._http.routes.learn(node.url for node in live)
        self._tell_left_out(self._http.routes.left_out)
        for listener in list(self._listeners):
            listener(view)

    def _tell_left_out(self, urls: tuple[str, ...]) -> None:
        if urls and urls != self._left_out:
            logger.warning(
                "nodes that are not asked, for credentials do not go there: %s", ", ".join(urls)
            )
        self._left_out = urls


def _check_partitions(view: ClusterView) -> None:
    """Check that each topic's partitions are numbered 0, 1, 2, ...; other code uses the number as the list's index."""
    for topic in view.topics:
        numbers = [partition.partition for partition in topic.partitions]
        if numbers != list(range(len(numbers))):
            raise UnexpectedAnswerError(
                f"metadata: the partitions of {topic.name} are {numbers[:20]}"
            )
