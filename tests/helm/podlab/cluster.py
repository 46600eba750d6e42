"""A cluster on a thread of its own: the API server, the controllers and something that runs pods.

The loop's thread owns the store; everybody else goes through ``read`` and ``wait_until``. Tests are the only users,
and they are synchronous: all that is public here may be called from any other thread.
"""

import asyncio
import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from tests.helm.podlab import pods
from tests.helm.podlab.api_server import ApiServer, Mutation
from tests.helm.podlab.controllers import Controllers
from tests.helm.podlab.store import ApiError, ObjectStore

T = TypeVar("T")

IDLE_PASS_S = 0.2
"""How often the controllers look although nothing has changed: ``minReadySeconds`` passes by itself."""

POLL_S = 0.05
CALL_S = 120.0
SERVICE_NETWORK = "198.18.96"


class PodHost(Protocol):
    """Runs the pods that the store holds, and reports on them there."""

    def enter(self) -> None:
        """Called once, on the loop's thread, before the loop starts."""

    async def start(self) -> None:
        """Called once, on the loop, before the first ``sync``."""

    def sync(self) -> None:
        """Bring what runs closer to what the store holds. Called after every change."""

    async def close(self) -> None:
        """Stop everything, at once."""

    def read_log(self, pod: str, container: str) -> str:
        """What a container has printed; of the first one when none is named."""


def new_store() -> ObjectStore:
    """An empty store that tells real time."""
    numbers = itertools.count(1)
    return ObjectStore(
        timestamp=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        new_uid=lambda: f"00000000-0000-4000-8000-{next(numbers):012d}",
    )


class Cluster:
    """Serves one store until it is closed. Use as a context manager."""

    def __init__(self, store: ObjectStore, host: PodHost) -> None:
        self._store = store
        self._host = host
        self._controllers = Controllers(store, time.monotonic)
        addresses = (f"{SERVICE_NETWORK}.{number}" for number in itertools.count(1))
        self._api = ApiServer(
            store,
            self._controllers,
            allocate_address=lambda: next(addresses),
            read_log=host.read_log,
        )
        # Bound here and not on the loop's thread: that one may live in a network of its own.
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="podlab", daemon=True)

    @property
    def url(self) -> str:
        """Of the API server."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> "Cluster":
        self._thread.start()
        self._started.wait(CALL_S)
        if self._failure is not None:
            self._listener.close()
            self._raise_failure()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(CALL_S)
        self._listener.close()
        self._raise_failure()

    def read(self, look: Callable[[ObjectStore], T]) -> T:
        """What a function sees in the store."""
        return self.run(self._look(look))

    def run(self, work: Coroutine[object, object, T]) -> T:
        """The result of a coroutine that runs on the loop."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(CALL_S)
        except FutureTimeoutError:
            self._raise_failure()
            raise

    def wait_until(
        self, is_true: Callable[[ObjectStore], bool], within_s: float, what: str
    ) -> float:
        """Poll until a condition on the store holds; returns how long that took.

        Raises:
            TimeoutError: It did not hold in time; the message names the pods and how they stand.
        """
        begun = time.monotonic()
        while not self.read(is_true):
            if time.monotonic() - begun > within_s:
                raise TimeoutError(f"not within {within_s} s: {what}; {self.read(_describe_pods)}")
            time.sleep(POLL_S)
        return time.monotonic() - begun

    def evict(self, pod: str) -> bool:
        """Ask for an eviction, as a drained machine does; False when a budget refuses it."""

        async def ask() -> bool:
            try:
                self._controllers.evict(pod)
            except ApiError as error:
                if error.code == 429:
                    return False
                raise
            return True

        return self.run(ask())

    def mutate(self, mutation: Mutation) -> None:
        """Change every object on its way in from now on."""
        self._api.mutate = mutation

    async def _look(self, look: Callable[[ObjectStore], T]) -> T:
        return look(self._store)

    def _run(self) -> None:
        try:
            self._host.enter()
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        changed = asyncio.Event()
        self._store.listeners.append(changed.set)
        try:
            await self._host.start()
            await self._api.start(self._listener)
            self._started.set()
            while not self._closing.is_set():
                changed.clear()
                self._controllers.reconcile()
                self._host.sync()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), IDLE_PASS_S)
        finally:
            await self._api.close()
            await self._host.close()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise RuntimeError("the cluster has failed") from self._failure


def _describe_pods(store: ObjectStore) -> str:
    return ", ".join(
        f"{pod.name} {pods.phase(pod)}{' ready' if pods.is_ready(pod) else ''}"
        f" {pod.text('status.message')}".rstrip()
        for pod in store.all("Pod")
    )
