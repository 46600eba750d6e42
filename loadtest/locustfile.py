"""Users for locust: they write and read over plain HTTP, check what they read, and note everything in a ledger.

    python -m loadtest                                                     # the whole test, with the verdict
    locust -f loadtest/locustfile.py --host http://127.0.0.1:8082 --topic t --ledger ledger    # locust alone

Any node accepts requests, so one ``--host`` is enough. With ``--nodes``, users are spread over several nodes, and a
user whose node fails goes to the next one. A user has one request in flight, and repeats it with its idempotency key
until its fate is known. For a cluster with access control, the credentials come from ``MILENA_TOKEN_FILE`` and related
variables.

The counts and weights of users are locust's own options: name classes on the command line, or use ``--config-users``.
"""

import time
from collections.abc import Iterator
from random import Random

import gevent
from locust import FastHttpUser, between, task
from locust.exception import StopUser

from loadtest.judging.ledger import Failed, Polled, Sent, Settled
from loadtest.locust_run import REQUEST_TIMEOUT_S, Current, HttpAnswer, tls_context
from loadtest.records.delivery import RequestDelivery
from loadtest.records.pages import Page, PageError, PageFormat, parse_page
from loadtest.records.receipts import ProduceAnswer, parse_answer, unanswered
from loadtest.records.workload import Dialect, RecordMaker, WriteRequest

GIVE_UP_AFTER_S = 30.0
"""The time after which a write without a known fate is noted as unknown, in s: longer than any failover."""
SERVER_TIMEOUT_MS = 10_000
"""The timeout of a write at the node, in ms. It is shorter than the client's, so a slow write still gets a response."""
LONG_POLL_MS = 1000
PAGE_BYTES = 256 << 10
RETRY_AFTER_S = 0.1
"""A reader's pause after a failed page, in s."""


class MilenaUser(FastHttpUser):
    """The base of writers and readers: it uses another node when its node fails."""

    abstract = True
    network_timeout = REQUEST_TIMEOUT_S
    connection_timeout = 3.0
    concurrency = 1
    insecure = False
    ssl_context_factory = staticmethod(tls_context)

    def on_start(self) -> None:
        """Find the current test, and choose a node."""
        if Current.run is None:
            raise StopUser
        self.run_state = Current.run
        self.number, self.user_id = self.run_state.new_user()
        self.node = self.number
        self.rng = Random(f"{self.run_state.options.seed}-{self.number}")

    @property
    def node_url(self) -> str:
        """Return the node for the next request."""
        nodes = self.run_state.nodes
        return nodes[self.node % len(nodes)]

    def failed(self, endpoint: str, reason: str) -> None:
        """Note a failed attempt, and go to the next node."""
        failure = Failed(
            at_s=time.monotonic(), endpoint=endpoint, node=self.node_url, reason=reason[:200]
        )
        self.run_state.ledger.add(failure)
        self.node += 1


class WritingUser(MilenaUser):
    """Writes one request after the other."""

    abstract = True
    endpoint = ""
    dialect = Dialect.JSON
    is_batch = False
    is_patient = True

    def on_start(self) -> None:
        """Prepare the user's records."""
        super().on_start()
        options = self.run_state.options
        self.maker = RecordMaker(
            self.user_id,
            self.dialect,
            record_bytes=options.record_bytes,
            key_count=options.keys,
            rng=self.rng,
        )
        self.record_count = options.batch_records if self.is_batch else 1
        self.url_path = f"{self.run_state.path}?acks={options.acks}&timeout_ms={SERVER_TIMEOUT_MS}"

    def wait_time(self) -> float:
        """Return the pause between two requests; locust calls this."""
        return float(self.run_state.options.think_ms) / 1000

    @task
    def produce(self) -> None:
        """Write the records of one request, and note their fates."""
        request = self.maker.request(self.record_count)
        sent_s = time.monotonic()
        ledger = self.run_state.ledger
        ledger.add(
            Sent(
                at_s=sent_s,
                writer=self.user_id,
                first=request.first_sequence,
                endpoint=self.endpoint,
                fingerprints=request.fingerprints,
            )
        )
        for settled in self._settle(request, self._deliver(request, sent_s), sent_s):
            ledger.add(settled)

    def _deliver(self, request: WriteRequest, sent_s: float) -> RequestDelivery:
        delivery = RequestDelivery(
            count=request.record_count,
            deadline_s=sent_s + GIVE_UP_AFTER_S,
            is_patient=self.is_patient,
        )
        headers = {
            **self.run_state.headers,
            "Content-Type": self.dialect.value,
            "Accept-Encoding": "identity",
            "Idempotency-Key": f"{self.user_id:x}-{request.first_sequence}",
        }
        while True:
            answer = self._attempt(request, headers)
            if answer.trouble:
                self.failed(self.endpoint, answer.trouble)
            pause_s = delivery.next_attempt_in(answer, time.monotonic())
            if pause_s is None:
                return delivery
            gevent.sleep(pause_s)

    def _attempt(self, request: WriteRequest, headers: dict[str, str]) -> ProduceAnswer:
        with self.client.request(
            "POST",
            self.node_url + self.url_path,
            name=self.endpoint,
            data=request.body,  # type: ignore[arg-type] # bytes are sent as they are
            headers=headers,
            catch_response=True,
        ) as response:
            got = HttpAnswer.of(response)
            answer = (
                parse_answer(got.status, got.body, request.record_count)
                if got.status
                else unanswered(
                    request.record_count,
                    got.trouble,
                    is_sent=not isinstance(got.error, ConnectionRefusedError),
                )
            )
            if answer.trouble:
                response.failure(answer.trouble)
        return answer

    def _settle(
        self, request: WriteRequest, delivery: RequestDelivery, sent_s: float
    ) -> Iterator[Settled]:
        now_s = time.monotonic()
        for run in delivery.runs():
            places = [r for r in run.receipts if r.partition >= 0]
            yield Settled(
                at_s=now_s,
                sent_s=sent_s,
                writer=self.user_id,
                first=request.first_sequence + run.first,
                count=len(run.receipts),
                endpoint=self.endpoint,
                fate=run.fate,
                value_bytes=request.value_bytes * len(run.receipts) // request.record_count,
                partitions=tuple(r.partition for r in places),
                offsets=tuple(r.offset for r in places),
            )


class JsonOne(WritingUser):
    """Writes one JSON record per request. A refused record is not retried, so the judge can check the refusal."""

    weight = 6
    endpoint = "produce one json"
    is_patient = False


class BinaryOne(WritingUser):
    """Writes one binary record per request."""

    weight = 2
    endpoint = "produce one binary"
    dialect = Dialect.BINARY


class JsonBatch(WritingUser):
    """Writes batches of JSON records."""

    weight = 3
    endpoint = "produce batch json"
    is_batch = True


class BinaryBatch(WritingUser):
    """Writes batches of binary records."""

    weight = 3
    endpoint = "produce batch binary"
    dialect = Dialect.BINARY
    is_batch = True


class ReadingUser(MilenaUser):
    """Fetches pages, checks them against the rules of a log, and notes them."""

    abstract = True
    endpoint = ""
    page_format = PageFormat.BATCHES
    wait_ms = 0

    def on_start(self) -> None:
        """Choose a partition and an offset."""
        super().on_start()
        self.partitions = sorted(self.run_state.starts)
        self.choice = self.rng.randrange(len(self.partitions))
        self.seek(self.run_state.starts[self.partition])

    @property
    def partition(self) -> int:
        """Return the partition that the user reads."""
        return self.partitions[self.choice % len(self.partitions)]

    def seek(self, offset: int) -> None:
        """Continue at another offset."""
        self.offset = offset
        self.is_seek = True

    def poll(self) -> Page | None:
        """Fetch and note one page from the current offset; return None if there was none."""
        sent_s = time.monotonic()
        path = f"{self.run_state.path}/partitions/{self.partition}/records"
        query = f"?offset={self.offset}&max_bytes={PAGE_BYTES}&timeout={self.wait_ms}"
        headers = {
            **self.run_state.headers,
            "Accept": self.page_format.value,
            "Accept-Encoding": "identity",
        }
        with self.client.request(
            "GET",
            self.node_url + path + query,
            name=self.endpoint,
            headers=headers,
            catch_response=True,
        ) as response:
            try:
                page = self._page(HttpAnswer.of(response))
            except PageError as error:
                response.failure(str(error))
                self.failed(self.endpoint, str(error))
                gevent.sleep(RETRY_AFTER_S)
                return None
            # A faulty page is noted like any other: the judge decides.
            for trouble in page.troubles(self.offset):
                response.failure(trouble)
        self._note(page, sent_s)
        return page

    def _page(self, answer: HttpAnswer) -> Page:
        if answer.status != 200:
            raise PageError(answer.trouble)
        return parse_page(self.page_format, answer.body, self.offset)

    def _note(self, page: Page, sent_s: float) -> None:
        self.run_state.ledger.add(
            Polled(
                at_s=time.monotonic(),
                sent_s=sent_s,
                reader=self.user_id,
                endpoint=self.endpoint,
                partition=self.partition,
                asked=self.offset,
                is_seek=self.is_seek,
                value_bytes=page.value_bytes,
                offsets=page.offsets,
                fingerprints=page.fingerprints,
            )
        )
        self.is_seek = False
        if page.records:
            self.offset = page.records[-1].offset + 1


class TailReader(ReadingUser):
    """Follows one partition with repeated long polls; its only state is the offset."""

    weight = 3
    endpoint = "fetch long poll"
    page_format = PageFormat.BASE64
    wait_ms = LONG_POLL_MS

    @task
    def follow(self) -> None:
        """Make one long poll."""
        self.poll()


class PagingReader(ReadingUser):
    """Pages through all partitions in turn, each from its first offset to its end."""

    weight = 1
    endpoint = "fetch pages"
    wait_time = between(0.02, 0.1)

    @task
    def turn_page(self) -> None:
        """Fetch one page; at the end of a partition, go to the next one."""
        page = self.poll()
        if page is not None and not page.records:
            self.choice += 1
            self.seek(self.run_state.starts[self.partition])
