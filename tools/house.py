"""Measure the house: rooms, arrows, paths, names and phrases, as one line of JSON.

    python tools/house.py              print the figures
    python tools/house.py --check      fail when a figure that has a bound is above it
    python tools/house.py --phrases    list each banned phrase with its place and what to write instead
    python tools/house.py --arrows     write which room imports which into docs/architecture.md

Reads source text only and imports nothing of the package, so it runs without an installation."""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for `tools`, when this file is run by its path

from tools.prose import banned_phrases  # noqa: E402

BOUNDS = {
    "class_names_twice": 3,
    "loose_modules": 12,
    "banned_phrases": 0,
    "places_per_operation": 2,
    "places_per_setting": 1,
}


# --- modules and imports ---


@dataclass(frozen=True, kw_only=True, slots=True)
class Module:
    """A source file of the package. `name` is the dotted one, of a package without `__init__`."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def room(self) -> str | None:
        """The top-level package or module it is part of; None for `everstep/__init__.py` and `__main__.py`."""
        _, *rest = self.name.split(".")
        return rest[0] if rest and rest[0] != "__main__" else None


def modules(root: Path) -> dict[str, Module]:
    """The package by dotted name. Templates are files that a command writes, not code of the package."""
    found = {}
    for path in sorted((root / "everstep").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[1] == "templates":
            continue
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name=name, path=path, tree=ast.parse(path.read_text()))
    return found


def imported(module: Module, package: dict[str, Module]) -> set[str]:
    """Names of the package's modules that this one imports, at its top or inside a function."""
    names: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, module)
            names.update(each if (each := f"{base}.{alias.name}") in package else base for alias in node.names)
    return (names & package.keys()) - {module.name}


def _absolute(node: ast.ImportFrom, module: Module) -> str:
    if not node.level:
        return node.module or ""
    is_package = module.path.name == "__init__.py"
    above = module.name.split(".")[: len(module.name.split(".")) - node.level + is_package]
    return ".".join([*above, node.module] if node.module else above)


def rooms(package: dict[str, Module]) -> set[str]:
    return {module.room for module in package.values() if module.room is not None}


def arrows(package: dict[str, Module]) -> dict[str, set[str]]:
    """Room → the rooms it imports."""
    found: dict[str, set[str]] = {room: set() for room in rooms(package)}
    for module in package.values():
        if module.room is not None:
            targets = {package[name].room for name in imported(module, package)}
            found[module.room] |= {room for room in targets if room not in (None, module.room)}
    return found


# --- figures of the package ---


def class_names_twice(package: dict[str, Module]) -> dict[str, list[str]]:
    """Class name without leading underscore → the modules that define it, where there are several."""
    places: dict[str, set[str]] = defaultdict(set)
    for module in package.values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].add(module.name)
    return {name: sorted(where) for name, where in sorted(places.items()) if len(where) > 1}


def num_lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


# --- docs/architecture.md ---


def layers_of(page: str) -> list[list[str]]:
    """The picture of the rooms: its lines from top to bottom, each a list of rooms."""
    picture = re.search(r"^```rooms\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [line.split() for line in picture[1].splitlines()] if picture else []


def arrows_of(page: str) -> dict[str, set[str]]:
    """The table of the rooms: its first and last column."""
    section = re.search(r"^## Rooms\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| `(\w+)` \|.*\|([^|]*)\|$", section[1], re.MULTILINE) if section else []
    return {room: set(re.findall(r"`(\w+)`", targets)) for room, targets in rows}


def with_arrows(page: str, targets: dict[str, set[str]]) -> str:
    """The page with the last column of that table made from the imports."""
    before, heading, rest = page.partition("## Rooms\n")
    table, mark, after = rest.partition("\n## ")

    def row(match: re.Match[str]) -> str:
        words = " ".join(f"`{target}`" for target in sorted(targets.get(match[2], ())))
        return f"{match[1]} {words} |" if words else f"{match[1]} |"

    table = re.sub(r"^(\| `(\w+)` \|[^|]*\|)[^|]*\|$", row, table, flags=re.MULTILINE)
    return before + heading + table + mark + after


@dataclass(frozen=True, kw_only=True, slots=True)
class Hop:
    """A row of a path: the file, and how the path gets there (`import`, or another way in words)."""

    file: str
    via: str


def path_of(journey: str, page: str) -> list[Hop]:
    """The rows of the table below the heading `The path of …`, in order."""
    section = re.search(rf"^## The path of {journey}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    if section is None:
        return []
    rows = re.findall(r"^\| `(everstep/[^`]+\.py)` \| ([^|]+?) \|", section[1], re.MULTILINE)
    return [Hop(file=file, via=via) for file, via in rows]


def _num_files(journey: str, root: Path) -> int | None:
    page = root / "docs" / "architecture.md"
    hops = path_of(journey, page.read_text()) if page.exists() else []
    return len({hop.file for hop in hops}) or None


# --- places of one declaration ---


def places_per_operation(package: dict[str, Module]) -> dict[str, list[str]] | None:
    """Operation → files of wire, client and the coordinator's edge that write its path or define it; None if there is
    no table. Its declaration and its handler are two."""
    table = package.get("everstep.wire.operations")
    if table is None:
        return None
    files = [each for each in package.values() if re.match(r"everstep\.(wire|client|coordinator\.edge)\b", each.name)]
    names = {each.name: _defined(each) for each in files}
    texts = {each.name: set(_strings(each.tree)) for each in files}
    found = {}
    for name, path in _operations(table.tree):
        end = re.search(r"/[a-z_]+$", path)
        found[f"{name} {path}"] = sorted(
            each.name
            for each in files
            if name in names[each.name] or texts[each.name] & {path, end[0] if end else path}
        )
    return found or None


def _operations(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Name and path of each function with `@operation(METHOD, PATH, …)`. A path may contain constants of the file."""
    known = {
        target.id: _text(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for name, function in _functions(tree):
        for mark in function.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "operation" and len(mark.args) > 1:
                path = _text(mark.args[1])
                while path != (longer := re.sub(r"<(\w+)>", lambda word: known.get(word[1], ""), path)):
                    path = longer
                yield name, path


def _text(node: ast.expr) -> str:
    """A string's value, with the names in a formatted one as `<NAME>`."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name):
        return f"<{node.id}>"
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each.value if isinstance(each, ast.FormattedValue) else each) for each in node.values)
    return ""


def _defined(module: Module) -> set[str]:
    """Functions of the module; methods too where they are calls to the coordinator."""
    if module.name.startswith("everstep.coordinator"):
        return {node.name for node in module.tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return {name for name, _ in _functions(module.tree)}


def places_per_setting(package: dict[str, Module]) -> dict[str, list[str]] | None:
    """Field of Policy → files that declare it: Policy's own, an option, a schema field, an environment variable."""
    home = package.get("everstep.wire.policy")
    fields = _policy_fields(home.tree) if home else []
    if home is None or not fields:
        return None
    declared = {each.name: set(_declarations(each)) for each in package.values() if each is not home}
    return {
        field: sorted([home.name, *(name for name, words in declared.items() if _spellings(field) & words)])
        for field in fields
    }


def _policy_fields(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Policy":
            return list(_fields(node))
    return []


def _spellings(field: str) -> set[str]:
    option = "--" + field.replace("_", "-")
    return {field, option, option.removesuffix("-s"), f"EVERSTEP_{field.upper()}"}


def _declarations(module: Module) -> Iterator[str]:
    """Options of the command line and environment variables by their text; fields of the job file's schema, and
    parameters that are options, by name. Naming an option to start a command is a use, not a declaration."""
    is_command_line = module.name.startswith("everstep.cli") or module.name == "everstep.launcher.torchrun_options"
    for text in _strings(module.tree):
        words = text.split("/")
        yield from (word for word in words if is_command_line and re.fullmatch(r"--[a-z-]+", word))
        yield from (word for word in words if re.fullmatch(r"EVERSTEP_[A-Z_]+", word))
    if re.match(r"everstep\.(cli\b|job_file\.schema$)", module.name):
        for node in ast.walk(module.tree):
            yield from _fields(node) if isinstance(node, ast.ClassDef) else ()
    for _, function in _functions(module.tree):
        defaults = [*function.args.defaults, *(each for each in function.args.kw_defaults if each)]
        if any(isinstance(each, ast.Call) and ast.unparse(each.func).endswith("Option") for each in defaults):
            yield from (argument.arg for argument in [*function.args.args, *function.args.kwonlyargs])


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id


def _functions(tree: ast.AST) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node


def _strings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


# --- all of it ---


@dataclass(frozen=True, kw_only=True, slots=True)
class House:
    """Everything that is counted, with what makes up each figure that has a bound."""

    figures: dict[str, int | None]
    details: dict[str, list[str]]

    def problems(self) -> Iterator[str]:
        """A line for each figure above its bound, and what makes it up."""
        for name, most in BOUNDS.items():
            figure = self.figures[name]
            if figure is not None and figure > most:
                yield f"{name} is {figure}, at most {most} allowed"
                yield from (f"  {line}" for line in self.details[name])


def measure(root: Path = ROOT) -> House:
    package = modules(root)
    twice = class_names_twice(package)
    loose = sorted(path.name for path in (root / "everstep").glob("*.py"))
    phrases_found = [str(match) for match in banned_phrases(root)]
    operations, settings = places_per_operation(package), places_per_setting(package)
    figures = {
        "rooms": len(rooms(package)),
        "arrows": sum(len(targets) for targets in arrows(package).values()),
        "lease_files": _num_files("a lease", root),
        "submit_files": _num_files("a submitted job", root),
        "cli_lines": num_lines((root / "everstep" / "cli").rglob("*.py")),
        "lines": num_lines((root / "everstep").rglob("*.py")),
        "class_names_twice": len(twice),
        "loose_modules": len(loose),
        "banned_phrases": len(phrases_found),
        "places_per_operation": _most(operations),
        "places_per_setting": _most(settings),
    }
    details = {
        "class_names_twice": [f"{name}: {', '.join(where)}" for name, where in twice.items()],
        "loose_modules": loose,
        "banned_phrases": phrases_found,
        "places_per_operation": _crowded(operations, BOUNDS["places_per_operation"]),
        "places_per_setting": _crowded(settings, BOUNDS["places_per_setting"]),
    }
    return House(figures=figures, details=details)


def _most(places: dict[str, list[str]] | None) -> int | None:
    return max(len(files) for files in places.values()) if places else None


def _crowded(places: dict[str, list[str]] | None, most: int) -> list[str]:
    return [f"{name}: {', '.join(files)}" for name, files in (places or {}).items() if len(files) > most]


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the house.")
    parser.add_argument("--check", action="store_true", help="fail when a figure is above its bound")
    parser.add_argument("--phrases", action="store_true", help="list the banned phrases")
    parser.add_argument(
        "--arrows", action="store_true", help="write the imports of the rooms into docs/architecture.md"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout to measure")
    options = parser.parse_args()
    if options.phrases:
        matches = list(banned_phrases(options.root))
        for match in matches:
            print(match)
        rooms_ = Counter("/".join(match.path.parts[:2]) for match in matches)
        print(json.dumps({"banned_phrases": len(matches), "by_room": dict(rooms_.most_common())}))
        return 0
    if options.arrows:
        page = options.root / "docs" / "architecture.md"
        page.write_text(with_arrows(page.read_text(), arrows(modules(options.root))))
        return 0
    house = measure(options.root)
    print(json.dumps(house.figures))
    found = list(house.problems()) if options.check else []
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
