"""Requests under way, and the bytes of their bodies, against their bounds."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from http_api.ports import ApiLimits
from milena.model.errors import TooManyRequestsError


@dataclass(slots=True)
class InFlight:
    """All of a server. Belongs to one event loop."""

    limits: ApiLimits
    request_count: int = 0
    body_bytes: int = 0

    def admit(self) -> None:
        """Count one more request.

        Raises:
            TooManyRequestsError: there are as many as there may be.
        """
        if self.request_count >= self.limits.requests_in_flight_max:
            raise TooManyRequestsError(
                f"{self.request_count} requests are in flight; try again later"
            )
        self.request_count += 1

    def has_room_for(self, byte_count: int) -> bool:
        """Whether one more request with such a body would be taken."""
        limits = self.limits
        return (
            self.request_count < limits.requests_in_flight_max
            and byte_count <= limits.request_bytes_max
            and self.body_bytes + byte_count <= limits.bytes_in_flight_max
        )

    def readmit(self) -> None:
        """Count a request again whose body has come.

        Raises:
            TooManyRequestsError: there are as many as there may be by now; it counts nevertheless.
        """
        self.request_count += 1
        if self.request_count > self.limits.requests_in_flight_max:
            raise TooManyRequestsError(
                f"{self.request_count} requests are in flight; try again later"
            )

    def reserve(self, byte_count: int) -> None:
        """Count bytes of a body that have come.

        Raises:
            TooManyRequestsError: together with the bodies under way it would be too much.
        """
        if self.body_bytes + byte_count > self.limits.bytes_in_flight_max:
            raise TooManyRequestsError(
                f"{self.body_bytes} bytes of requests are in flight; try again later"
            )
        self.body_bytes += byte_count

    @contextmanager
    def without_one(self) -> Iterator[None]:
        """For so long one request is not in flight: it has a place among the streams."""
        self.request_count -= 1
        try:
            yield
        finally:
            self.request_count += 1
