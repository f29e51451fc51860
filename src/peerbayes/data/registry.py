"""Names of families, strategies, topologies, sources and report sections: built in, or of an installed outside package.

An outside package declares what it brings as entry points, one group per kind:

    [project.entry-points."peerbayes.families"]
    centroid = "my_package:Centroid"

Entry points are read when a name is not built in, and an object is imported when it is used. Nothing is ever
downloaded or installed.
"""

from __future__ import annotations

import re
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from peerbayes.data.arguments import shown
from peerbayes.errors import ExtensionError

T = TypeVar("T")


def package_name(name: str) -> str:
    """Return the name of a package as pip compares names: lower case, with hyphens."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _distribution(entry: EntryPoint) -> str:
    """Return the name of the package that declares an entry point."""
    return package_name(entry.dist.name if entry.dist is not None else entry.value.partition(":")[0])


class Registry(UserDict[str, T]):
    """A dictionary of built-in objects by name, in which names of outside packages are found as well.

    Iteration yields built-in names and those set in this process; `names` also those of outside packages. Built-in
    names win; two declarations of one name, or a declaration of a built-in name, are errors.

    kind      what an entry is, in errors: "family"
    group     the group of entry points
    built_in  objects by name
    problem   returns what is wrong with an object that was loaded under a name; None: nothing
    reserved  whether a name is taken although it is not in `built_in`
    """

    def __init__(
        self,
        kind: str,
        group: str,
        built_in: Mapping[str, T],
        problem: Callable[[str, Any], str | None],
        reserved: Callable[[str], bool] = lambda name: False,
    ) -> None:
        super().__init__(built_in)
        self.kind, self.group, self.built_in = kind, group, frozenset(built_in)
        self._problem, self._reserved = problem, reserved
        self._loaded: dict[str, tuple[str, T]] = {}  # by name: the package and its object

    def __contains__(self, name: object) -> bool:
        """Return whether a name is known; nothing is imported for it."""
        if name in self.data or name in self._loaded:
            return True
        return isinstance(name, str) and not self._reserved(name) and name in self._declared()

    def __missing__(self, name: str) -> T:
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name][1]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the object of a name, or the default for a name that nothing has."""
        if name not in self:
            return default
        return self[name]

    def present(self, name: str) -> T | None:
        """Return the object of a name if it is built in or loaded already; import nothing."""
        return self.data[name] if name in self.data else self._loaded.get(name, (None, None))[1]

    def names(self) -> tuple[str, ...]:
        """Return all names, those of outside packages last; for errors, so that no clash raises here."""
        outside = sorted(
            name for name in self._declared() if name not in self.data and not self._reserved(name)
        )
        return (*self.data, *outside)

    def package(self, name: str) -> str | None:
        """Return the outside package that a name comes from; None: it is built in, or was set in this process."""
        if name in self.data or self._reserved(name):
            return None
        return self._loaded[name][0] if name in self._loaded else _distribution(self._entry(name))

    def require(self, name: str, package: str, said_by: str) -> None:
        """Refuse a name that is missing here, or comes from another package than `said_by` says; import nothing."""
        if name in self.data or self._reserved(name):
            return
        if name not in self:
            raise ExtensionError(
                f"the {self.kind} {shown(name)}, which {said_by} says is of the package {shown(package)}, is not "
                f"installed; expected one of {', '.join(self.names())}. If you trust its authors: pip install "
                f"{package:.80}"
            )
        if (installed := self.package(name)) != package_name(package):
            raise ExtensionError(
                f"the {self.kind} {shown(name)} is of the package {installed} here, but {said_by} says that it is of "
                f"{shown(package)}; expected the same package: install that one instead, if you trust its authors"
            )

    def _declared(self) -> dict[str, list[EntryPoint]]:
        """Return the entry points of the group, by name."""
        declared: dict[str, list[EntryPoint]] = {}
        for entry in entry_points(group=self.group):
            declared.setdefault(entry.name, []).append(entry)
        return declared

    def _entry(self, name: str) -> EntryPoint:
        """Return the one entry point of a name; ExtensionError where there is none, or a clash."""
        declared = self._declared()
        for other, entries in declared.items():
            if other in self.built_in or self._reserved(other):
                raise ExtensionError(
                    f"the package {_distribution(entries[0])} brings the {self.kind} {other!r}, a name that peerbayes "
                    "uses itself; expected another name: update or uninstall the package"
                )
        if name not in declared:
            raise ExtensionError(
                f"no installed package brings the {self.kind} {shown(name)}; expected one of "
                f"{', '.join(self.names()) or 'those of installed packages, of which there are none'}. Install the "
                f"package that declares it in the group {self.group}"
            )
        if len(declared[name]) > 1:
            packages = " and ".join(sorted(_distribution(entry) for entry in declared[name]))
            raise ExtensionError(
                f"the {self.kind} {name!r} is brought by {packages}; expected one package: uninstall the others"
            )
        return declared[name][0]

    def _load(self, name: str) -> tuple[str, T]:
        """Import the object of a name: its package, and the object."""
        entry = self._entry(name)
        package = _distribution(entry)
        try:
            loaded = entry.load()
            problem = self._problem(name, loaded)
        except Exception as error:  # whatever an outside package does when it is imported
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            version = entry.dist.version if entry.dist is not None else "of unknown version"
            raise ExtensionError(
                f"the {self.kind} {name!r} of the package {package} {version} ({entry.value}) cannot be used: "
                f"{problem}. Update or uninstall the package, or tell its authors"
            )
        return package, loaded


class Choices:
    """Names to choose from: those of a registry, and further ones. Outside packages are read only where needed."""

    def __init__(self, registry: Registry[Any], *further: str) -> None:
        self._registry, self._further = registry, further

    def __contains__(self, name: object) -> bool:
        return name in self._further or name in self._registry

    def __iter__(self) -> Iterator[str]:
        names = self._registry.names()
        inside = [name for name in names if name in self._registry.data]
        return iter((*inside, *self._further, *names[len(inside) :]))

    def __len__(self) -> int:
        return len(tuple(iter(self)))


def callable_problem(name: str, loaded: Any) -> str | None:
    """Return what is wrong with an object that must be a function."""
    return None if callable(loaded) else f"it is {shown(loaded)}; expected a function"
