"""A locust user that does nothing but send what was made before, and a meter of what users cost.

    locust -f loadtest/bench/clients/locust_users.py BareUser                           # the ceiling of locust's users
    locust -f loadtest/locustfile.py,loadtest/bench/clients/locust_users.py JsonOne    # ours, metered

With ``LOCUST_METER`` in the environment the meter writes ``{"requests": …, "cpu_s": …}`` to the file that it names:
from the start of the test to its end, without what loading locust costs.
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
    """Writes the same record again and again, and looks at the status alone."""

    def on_start(self) -> None:
        """Locust's hook."""
        self.path = f"/topics/{os.environ[TOPIC]}?acks=all"

    @task
    def produce(self) -> None:
        """One request."""
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
