"""A locust user that sends one prepared request, and a meter of the CPU that users take.

    locust -f loadtest/bench/clients/locust_users.py BareUser                           # the most that locust can send
    locust -f loadtest/locustfile.py,loadtest/bench/clients/locust_users.py JsonOne    # our users, with the meter

If the environment has ``LOCUST_METER``, the meter writes ``{"requests": …, "cpu_s": …}`` to the file of that name. The
figures are from the start of the test to its end, without the time in which locust starts.
"""

import json
import os
import time
from pathlib import Path

from locust import FastHttpUser, events, task
from locust.env import Environment

METER = "LOCUST_METER"
TOPIC = "BARE_TOPIC"
BODY = b'{"records":[{"value":"%b"}]}' % (b"x" * 100)
HEADERS = {"Content-Type": "application/vnd.kafka.json.v2+json", "Accept-Encoding": "identity"}


class BareUser(FastHttpUser):
    """Writes the same record repeatedly, and checks only the status."""

    def on_start(self) -> None:
        """Build the path; locust calls this."""
        self.path = f"/topics/{os.environ[TOPIC]}?acks=all"

    @task
    def produce(self) -> None:
        """Send one request."""
        self.client.post(self.path, data=BODY, headers=HEADERS, name="bare")  # type: ignore[arg-type]


class _Meter:
    began_cpu_s = 0.0


def _begin(**_: object) -> None:
    _Meter.began_cpu_s = time.process_time()


def _end(environment: Environment, **_: object) -> None:
    if METER in os.environ:
        total = environment.stats.total
        figures = {
            "requests": total.num_requests - total.num_failures,
            "cpu_s": time.process_time() - _Meter.began_cpu_s,
        }
        Path(os.environ[METER]).write_text(json.dumps(figures), encoding="utf-8")


events.test_start.add_listener(_begin)  # type: ignore[no-untyped-call]  # locust's hooks have no types
events.test_stop.add_listener(_end)  # type: ignore[no-untyped-call]
