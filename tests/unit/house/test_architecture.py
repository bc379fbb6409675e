"""docs/architecture.md is the tree as it is: rooms, layers, imports, and the files of each path."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from tools import house

PAGE = (house.ROOT / "docs" / "architecture.md").read_text()
JOURNEYS = ["a gradient", "a kill", "a lease", "a metric", "a submitted job", "a submitted job, on its nodes"]
WAYS = {"start", "import", "HTTP", "Unix socket", "name"}  # how a path gets to a file; `name`: imported by its name


@pytest.fixture(scope="module")
def package() -> dict[str, house.Module]:
    return house.modules(house.ROOT)


def test_the_picture_has_each_room_once(package: dict[str, house.Module]) -> None:
    assert sorted(chain(*house.layers_of(PAGE))) == sorted(house.rooms(package))


def test_every_import_goes_down_in_the_picture(package: dict[str, house.Module]) -> None:
    floor = {room: number for number, layer in enumerate(house.layers_of(PAGE)) for room in layer}
    pairs = [(room, target) for room, targets in house.arrows(package).items() for target in targets]

    assert [(room, target) for room, target in pairs if floor[target] <= floor[room]] == []


def test_the_table_has_the_imports_of_each_room(package: dict[str, house.Module]) -> None:
    assert house.arrows_of(PAGE) == house.arrows(package), "python tools/house.py --arrows mends the table"


@pytest.mark.parametrize("journey", JOURNEYS)
def test_each_file_of_a_path_is_connected_with_another(journey: str, package: dict[str, house.Module]) -> None:
    hops = house.path_of(journey, PAGE)
    assert len(hops) > 5
    assert {hop.via for hop in hops} <= WAYS
    assert [hop.file for hop in hops if not (house.ROOT / hop.file).is_file()] == []

    modules = {hop.file: package[_module(hop.file)] for hop in hops}
    imports = {file: house.imported(module, package) for file, module in modules.items()}
    for hop in hops:
        name = modules[hop.file].name
        others = {module.name for module in modules.values()} - {name}
        is_connected = imports[hop.file] & others or any(name in names for names in imports.values())
        assert hop.via != "import" or is_connected, f"{hop.file} is not imported on this path and imports nothing of it"


def _module(file: str) -> str:
    return ".".join(Path(file).with_suffix("").parts).removesuffix(".__init__")


def test_a_path_does_not_visit_a_file_twice() -> None:
    for journey in JOURNEYS:
        files = [hop.file for hop in house.path_of(journey, PAGE)]
        assert len(files) == len(set(files)), journey
