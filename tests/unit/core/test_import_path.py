"""Modules of the same name side by side: of several folders, in nested blocks, in several threads."""

from __future__ import annotations

import builtins
import importlib
import inspect
import json
import sys
import threading
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.core.import_path import import_from_path
from everstep.errors import UsageError
from lab.refused import refused


@pytest.fixture(autouse=True)
def modules_as_before(tmp_path: Path) -> Iterator[None]:
    """After each story the names of others in sys.modules are what they were, and so are the ways to import."""
    before, ways = dict(sys.modules), (builtins.__import__, importlib.import_module)
    yield
    for name, module in list(sys.modules.items()):
        if name in before:
            continue
        file = str(getattr(module, "__file__", ""))
        if file.startswith(str(tmp_path)) or name.startswith("everstep_import_"):
            assert name.startswith("everstep_import_") or file.startswith(str(tmp_path / "current"))
            del sys.modules[name]
    assert before.items() <= sys.modules.items()
    assert (builtins.__import__, importlib.import_module) == ways


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """make("v1", model_def="x = 1"): a folder with modules; `pkg__sub` is pkg/sub.py, `pkg__init` its __init__.py."""

    def make(name: str, **modules: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for module, text in modules.items():
            package, _, inner = module.rpartition("__")
            path = folder / package / f"{'__init__' if inner == 'init' else inner}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return folder

    return make


def test_two_versions_live_side_by_side(make: Callable[..., Path]) -> None:
    with import_from_path(make("v1", model_def="x = 1")):
        import model_def as first
    with import_from_path(make("v2", model_def="x = 2")):
        import model_def as second

    assert (first.x, second.x) == (1, 2)
    assert "model_def" not in sys.modules


def test_a_path_as_text_with_a_slash_at_its_end(make: Callable[..., Path]) -> None:
    with everstep.import_from_path(f"{make('v1', model_def='x = 1')}/"):
        from model_def import x

    assert x == 1


def test_a_module_that_is_loaded_already_keeps_its_place(
    make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(make("current", model_def_here="x = 0"))
    import model_def_here as current

    with import_from_path(make("old", model_def_here="x = 1")):
        import model_def_here as old
    import model_def_here as again

    assert (current.x, old.x) == (0, 1)
    assert again is current


def test_siblings_and_packages_come_from_the_same_folder(make: Callable[..., Path]) -> None:
    folder = make(
        "v1",
        model_def="import nets.deep\nimport nets.deep as deep\nfrom nets import wide\nfrom settings import *\n"
        "sizes = (nets.deep.size, deep.size, wide.size, SIZE)",
        nets__init="",
        nets__deep="from . import wide\nfrom settings import SIZE\nsize = wide.size + SIZE",
        nets__wide="size = 10",
        settings="SIZE = 5",
    )
    with import_from_path(folder):
        import model_def

    assert model_def.sizes == (15, 15, 10, 5)


def test_a_folder_without_init_is_a_package_too(make: Callable[..., Path]) -> None:
    with import_from_path(make("v1", nets__deep="size = 7")):
        from nets.deep import size

    assert size == 7


def test_a_module_is_imported_once_in_a_block(make: Callable[..., Path]) -> None:
    with import_from_path(
        make("v1", model_def="from shared import box", other="from shared import box", shared="box = []")
    ):
        import model_def
        import other

    assert model_def.box is other.box


def test_a_lazy_import_after_the_block_finds_its_sibling(make: Callable[..., Path]) -> None:
    folder = make("v1", model_def="def late():\n    import sibling\n    return sibling.x", sibling="x = 1")
    other = make("v2", model_def="def late():\n    from sibling import x\n    return x", sibling="x = 2")
    with import_from_path(folder):
        import model_def as first
    with import_from_path(other):
        import model_def as second

    assert (first.late(), second.late(), first.late()) == (1, 2, 1)


def test_a_lazy_import_in_another_thread_finds_its_sibling_too(make: Callable[..., Path]) -> None:
    with import_from_path(
        make("v1", model_def="def late():\n    import sibling\n    return sibling.x", sibling="x = 1")
    ):
        import model_def
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(model_def.late()))
    thread.start()
    thread.join()

    assert found == [1]


def test_the_inner_of_two_blocks_is_asked_first(make: Callable[..., Path]) -> None:
    outer = make("outer", model_def="x = 'outer'", only_outer="x = 'only outer'")
    inner = make("inner", model_def="import only_outer\nx = 'inner'\nbeside = only_outer.x")
    with import_from_path(outer):
        with import_from_path(inner):
            import model_def as first
        import model_def as second

    assert (first.x, first.beside, second.x) == ("inner", "only outer", "outer")


def test_the_same_folder_twice_gives_two_modules(make: Callable[..., Path]) -> None:
    folder = make("v1", model_def="x = []")
    with import_from_path(folder):
        import model_def as first

        with import_from_path(folder):
            import model_def as second

    assert first is not second
    assert first.x is not second.x


def test_threads_in_blocks_of_their_own_do_not_meet(make: Callable[..., Path]) -> None:
    folders = [make(f"v{n}", model_def=f"import sibling\nx = ({n}, sibling.x)", sibling=f"x = {n}") for n in range(8)]
    inside = threading.Barrier(len(folders), timeout=60)
    found: dict[int, Any] = {}

    def story(number: int) -> None:
        with import_from_path(folders[number]):
            inside.wait()  # all are in their blocks at once
            import model_def

            inside.wait()
            found[number] = model_def.x

    threads = [threading.Thread(target=story, args=(number,)) for number in range(len(folders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == {number: (number, number) for number in range(len(folders))}


def test_a_thread_outside_does_not_see_the_block_of_another(
    make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(make("current", model_def_there="x = 0"))
    found: list[int] = []

    def outside() -> None:
        import model_def_there

        found.append(model_def_there.x)

    with import_from_path(make("old", model_def_there="x = 1")):
        import model_def_there as mine

        thread = threading.Thread(target=outside)
        thread.start()
        thread.join()

    assert (mine.x, found) == (1, [0])


def test_import_module_by_name(make: Callable[..., Path]) -> None:
    with import_from_path(make("v1", nets__init="", nets__deep="size = 7")):
        deep = importlib.import_module("nets.deep")

    assert deep.size == 7
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("nets.deep")


def test_what_the_folder_has_not_is_imported_as_ever(make: Callable[..., Path]) -> None:
    with import_from_path(make("v1", model_def="import json, everstep\nfrom typing import Any")):
        import model_def

        import everstep as mine

    assert (model_def.json, model_def.everstep, mine) == (json, everstep, everstep)


def test_a_copy_of_everstep_in_the_folder_is_not_taken(make: Callable[..., Path]) -> None:
    with import_from_path(make("v1", everstep__init="x = 1", model_def="import everstep")):
        import model_def

    assert model_def.everstep is everstep


def test_a_module_of_elsewhere_that_is_first_imported_in_a_block_sees_nothing_of_it(
    make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(make("current", some_library="import settings_x\nx = settings_x.x", settings_x="x = 0"))
    with import_from_path(make("v1", settings_x="x = 1", model_def="import some_library, settings_x")):
        import model_def

    assert (model_def.some_library.x, model_def.settings_x.x) == (0, 1)


def test_what_installed_packages_import_in_a_block_is_not_the_folders(make: Callable[..., Path]) -> None:
    with import_from_path(make("v1", locale="x = 1")):
        import gettext  # its functions import locale when they are called

        gettext.find("nothing")
        import locale

    assert locale.x == 1  # type: ignore[attr-defined]


def test_dataclasses_and_hints_and_source_of_such_modules_work_after_the_block(make: Callable[..., Path]) -> None:
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom typing import ClassVar\n"
        "@dataclass\nclass Net:\n    size: Size\n    kind: ClassVar[str] = 'net'\nclass Size: ...\n"
    )
    with import_from_path(make("v1", model_def=text)):
        from model_def import Net, Size

    assert Net(3).size == 3
    assert typing.get_type_hints(Net)["size"] is Size
    assert "class Net" in inspect.getsource(Net)


def test_a_missing_module_is_told_by_its_plain_name(make: Callable[..., Path]) -> None:
    folder = make("v1", nets__init="", model_def="import nets.none")
    says = "No module named 'nets.none' in .*v1"
    with pytest.raises(ModuleNotFoundError, match=says) as caught, import_from_path(folder):
        import model_def  # noqa: F401
    assert caught.value.name == "nets.none"
    with pytest.raises(ModuleNotFoundError, match="No module named 'nowhere'"), import_from_path(folder):
        import nowhere  # noqa: F401


def test_an_error_in_a_module_rises_and_leaves_nothing(make: Callable[..., Path]) -> None:
    with pytest.raises(ZeroDivisionError), import_from_path(make("v1", model_def="1 / 0")):
        import model_def  # noqa: F401


def test_the_folder_stays_as_it_is(make: Callable[..., Path]) -> None:
    folder = make("v1", model_def="x = 1")
    with import_from_path(folder):
        import model_def  # noqa: F401

    assert [path.name for path in folder.iterdir()] == ["model_def.py"]


def test_a_path_that_is_no_folder_is_an_error(tmp_path: Path) -> None:
    with refused("import-path-not-a-folder", UsageError), import_from_path(tmp_path / "none"):
        pass
