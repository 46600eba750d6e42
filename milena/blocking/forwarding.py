"""Turn the asynchronous methods of a class into blocking ones, with the same parameters, types and documentation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import wraps
from inspect import getdoc
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, TypeVar

I = TypeVar("I")  # noqa: E741 - the inner object
P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])


class Forwarding(ABC, Generic[I]):
    """The blocking counterpart of an asynchronous object, whose methods run on the client's own thread."""

    @abstractmethod
    def _run(self, work: Callable[[I], Coroutine[object, object, T]]) -> T:
        """Run ``work`` with the inner object on the loop's thread; return its result, or raise its error."""


def forwarded(
    method: Callable[Concatenate[I, P], Coroutine[object, object, T]],
) -> Callable[Concatenate[Forwarding[I], P], T]:
    """Return the blocking form of an asynchronous method. Type checkers and editors see its parameters."""

    @wraps(method)
    def call(self: Forwarding[I], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(lambda inner: method(inner, *args, **kwargs))

    return call


class Mirrored(property, Generic[T]):
    """A property of the inner object, with the same type and documentation."""

    def __init__(self, mirrored: object) -> None:
        assert isinstance(mirrored, property), mirrored
        get = mirrored.fget
        assert get is not None, "a property can be read"
        super().__init__(lambda owner: get(owner._inner), doc=mirrored.__doc__)

    if TYPE_CHECKING:

        def __get__(  # type: ignore[override]  # it has one type, on the object
            self, owner: object, kind: type | None = None, /
        ) -> T: ...


def described_as(method: Callable[..., object]) -> Callable[[F], F]:
    """Add the documentation of an asynchronous method to that of its blocking counterpart."""

    def describe(function: F) -> F:
        function.__doc__ = f"{getdoc(function)}\n\n{getdoc(method)}"
        return function

    return describe
