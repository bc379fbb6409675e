"""`everstep.import_from_path(folder)`: import modules from a folder beside others with the same names.

    with everstep.import_from_path(path + "/code/"):
        import model_def as old_model_def

The rule: an import goes to the folder if the folder has that module and the import is made inside the block by the
thread that entered it, or by a module of the folder, at any time and in any thread. All other imports never see the
folder; no thread waits. In nested blocks the inner folder comes first.

Each block is a package with a unique name, and Python's own import machinery, with its locks, does the rest: other
names in `sys.modules` are untouched, and code that needs a module's entry there (dataclasses, inspect, relative
imports) finds it. Not covered: `importlib.import_module` of a folder's module after the block."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import itertools
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from everstep.errors import UsageError

_PREFIX = "everstep_import_"
_ALWAYS_SHARED = ("everstep", "__main__")  # the folder's trials must be subclasses of this everstep's PyTorchTrial

_numbers = itertools.count(1)
_scopes: dict[str, _Scope] = {}  # of all blocks, by package: their modules may import later
_scope: ContextVar[_Scope | None] = ContextVar("everstep_import_scope", default=None)
_lock = threading.Lock()  # for the two below
_num_blocks = 0
_uninstall: Callable[[], None] | None = None

Import = Callable[..., Any]


@contextlib.contextmanager
def import_from_path(path: str | os.PathLike[str]) -> Iterator[None]:
    """Inside the block, import the folder's modules as separate modules, even if others have the same names."""
    scope = _Scope(_check_folder(path), _scope.get())
    with _hooks_installed():
        token = _scope.set(scope)
        try:
            yield
        finally:
            _scope.reset(token)


class _Scope:
    """A folder's modules, and those of the folders around its block."""

    def __init__(self, folder: Path, outer: _Scope | None) -> None:
        self._package = f"{_PREFIX}{next(_numbers)}"
        self._folder = str(folder)
        self._outer = outer
        self._at_start = frozenset(sys.modules)
        sys.path_importer_cache.pop(self._folder, None)  # there may be new files since it was cached
        module = ModuleType(self._package, f"Modules of {folder}, by everstep.import_from_path")
        module.__path__ = [self._folder]
        _scopes[self._package] = self
        sys.modules[self._package] = module
        self.builtins = vars(builtins) | {"__import__": self._import}

    def _import(self, name: str, *others: Any, **more: Any) -> Any:
        """`import` in the folder's modules."""
        return self.import_name(builtins.__import__, name, *others, **more)

    def import_name(
        self,
        ordinary: Import,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        top = name.partition(".")[0]
        owner = self._owner(top) if level == 0 else None
        if owner is None:
            return ordinary(name, globals, locals, fromlist, level)
        with owner.plainly_named():
            module = ordinary(f"{owner._package}.{name}", globals, locals, fromlist, 0)
            return module if fromlist else sys.modules[f"{owner._package}.{top}"]

    def import_whole(self, ordinary: Callable[[str], ModuleType], name: str) -> ModuleType:
        """Like importlib.import_module: the module itself, not its top package."""
        owner = self._owner(name.partition(".")[0])
        if owner is None:
            return ordinary(name)
        with owner.plainly_named():
            return ordinary(f"{owner._package}.{name}")

    def _owner(self, top: str) -> _Scope | None:
        if self._has(top):
            return self
        return self._outer._owner(top) if self._outer is not None else None

    def _has(self, top: str) -> bool:
        """In Python's own order, with the folder as the first place to look."""
        if f"{self._package}.{top}" in sys.modules:
            return True
        if top in _ALWAYS_SHARED or BuiltinImporter.find_spec(top) or FrozenImporter.find_spec(top):
            return False
        spec = PathFinder.find_spec(top, [self._folder])
        if spec is not None and spec.loader is None:  # a plain folder: a real package elsewhere takes precedence
            elsewhere = PathFinder.find_spec(top)
            return elsewhere is None or elsewhere.loader is None
        return spec is not None

    def is_asked(self, importer: Mapping[str, Any] | None) -> bool:
        """Whether an import in the block may go to the folder. Not if it is made by a module from elsewhere that was
        first imported inside the block: that module outlives the block, and others use it."""
        name = (importer or {}).get("__name__")
        if name in self._at_start or name not in sys.modules:
            return not _is_installed(importer)
        return vars(sys.modules[name]) is not importer

    @contextlib.contextmanager
    def plainly_named(self) -> Iterator[None]:
        """Name a missing module as the script did."""
        try:
            yield
        except ModuleNotFoundError as error:
            inner = f"{self._package}."
            if error.name is None or not error.name.startswith(inner):
                raise
            plain = error.name.removeprefix(inner)
            raise ModuleNotFoundError(f"No module named {plain!r} in {self._folder}", name=plain) from None


class _Finder:
    """For `sys.meta_path`: runs source files of the blocks' packages with the imports of their scope."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        scope = _scopes.get(name.partition(".")[0])
        if scope is None:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _PathLoader(spec.loader.name, spec.loader.path, scope)
        return spec


class _PathLoader(SourceFileLoader):
    def __init__(self, name: str, path: str, scope: _Scope) -> None:
        super().__init__(name, path)
        self._scope = scope

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = self._scope.builtins
        super().exec_module(module)

    def set_data(self, path: str, data: object, *, _mode: int = 0o666) -> None:
        """Leave the folder unchanged: no __pycache__."""


@contextlib.contextmanager
def _hooks_installed() -> Iterator[None]:
    """While any thread is in a block; other threads are not affected."""
    global _num_blocks, _uninstall
    with _lock:
        _num_blocks += 1
        if _Finder not in sys.meta_path:
            sys.meta_path.insert(0, _Finder)  # permanently: modules may import at any time
        if _uninstall is None:
            _uninstall = _install()
    try:
        yield
    finally:
        with _lock:
            _num_blocks -= 1
            if _num_blocks == 0 and _uninstall is not None:
                _uninstall()
                _uninstall = None


def _install() -> Callable[[], None]:
    ordinary, ordinary_whole = builtins.__import__, importlib.import_module

    def scoped_import(name: str, globals: Mapping[str, Any] | None = None, *others: Any, **more: Any) -> Any:
        scope = _scope.get()
        if scope is None or not scope.is_asked(globals):
            return ordinary(name, globals, *others, **more)
        return scope.import_name(ordinary, name, globals, *others, **more)

    def scoped_import_module(name: str, package: str | None = None) -> ModuleType:
        scope = _scope.get()
        found: ModuleType
        if scope is None or name.startswith("."):
            found = ordinary_whole(name, package)
        else:
            found = scope.import_whole(ordinary_whole, name)
        return found

    def uninstall() -> None:
        if builtins.__import__ is scoped_import:  # otherwise other code has wrapped it
            builtins.__import__ = ordinary
        if importlib.import_module is scoped_import_module:
            importlib.import_module = ordinary_whole

    builtins.__import__, importlib.import_module = scoped_import, scoped_import_module
    return uninstall


def _is_installed(importer: Mapping[str, Any] | None) -> bool:
    """Whether that module belongs to Python itself or to an installed package: imports in its functions never mean the
    folder."""
    file = str((importer or {}).get("__file__") or "")
    return any(file.startswith(folder + os.sep) for folder in _INSTALLED)


_INSTALLED = frozenset(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def _check_folder(path: str | os.PathLike[str]) -> Path:
    folder = Path(path).expanduser().absolute()
    if not folder.is_dir():
        raise UsageError(
            f"not a folder: {folder}",
            hint="give a folder that holds Python modules, such as PATH/code/",
            code="import-path-not-a-folder",
        )
    return folder
