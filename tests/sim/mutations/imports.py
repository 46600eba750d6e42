"""Import modules without a guard."""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.sim.mutations.mutation import Mutation, mutated


class _MutatingLoader(importlib.machinery.SourceFileLoader):
    """Loads a module from a changed source text."""

    mutation: Mutation

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        source = Path(path).read_text(encoding="utf-8")
        return compile(mutated(source, self.mutation, fullname), path, "exec", dont_inherit=True)


class MutatingFinder(importlib.abc.MetaPathFinder):
    """Finds the mutated module and those ``anew`` by their sources, even if compiled modules exist."""

    def __init__(self, mutation: Mutation, anew: Sequence[str] = ()) -> None:
        self._mutation = mutation
        self._anew = anew

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        is_mutated = fullname in {module for module, _, _ in self._mutation.cuts}
        if not is_mutated and not _is_among(fullname, self._anew):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        if not spec.origin.endswith(".py"):
            spec.origin = str(Path(spec.origin).with_name(f"{fullname.rpartition('.')[2]}.py"))
        spec.loader = importlib.machinery.SourceFileLoader(fullname, spec.origin)
        if is_mutated:
            spec.loader = _MutatingLoader(fullname, spec.origin)
            spec.loader.mutation = self._mutation
        return spec


def _is_among(name: str, packages: Sequence[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@contextmanager
def imported_anew(mutation: Mutation, *packages: str) -> Iterator[None]:
    """Within the block, imports of these packages or modules create new modules, one of them without the guard.

    The new modules come from the sources, even if compiled modules exist. After the block the old modules are back.
    """

    def found() -> dict[str, types.ModuleType]:
        return {name: sys.modules[name] for name in sys.modules if _is_among(name, packages)}

    kept = found()
    finder = MutatingFinder(mutation, packages)
    sys.meta_path.insert(0, finder)
    try:
        for name in kept:
            del sys.modules[name]
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in found():
            del sys.modules[name]
        sys.modules.update(kept)
        for name, module in kept.items():
            parent, _, child = name.rpartition(".")
            setattr(sys.modules[parent], child, module)
