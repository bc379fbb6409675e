"""The pool file: which pools a coordinator has, where their nodes come from, and the shares of people.

    pools:
      gpus: {platform: slurm, max_nodes: 8, coordinator: http://login1:7070}
    people:
      alice: {weight: 2, quota: 8}

Unknown keys are errors. Reading starts nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, model_validator

from everstep.coordinator.pool.people import People, Person
from everstep.errors import UsageError
from everstep.job_file.fields import Duration, EnvName, Line, Section, Text, Texts, key, refusal, shorthand
from everstep.job_file.fields import text_paths as paths_of_texts
from everstep.job_file.platform_options import Platforms
from everstep.job_file.problems import problems_of, usage_error
from everstep.job_file.schema import Job, Resources, Volume, parse_volume
from everstep.job_file.tree import Tree, parse_mapping, read_text
from everstep.pool.decide_nodes import NodesSpec
from everstep.wire.pool import LEAST_WEIGHT, MOST_SLOTS, MOST_WEIGHT

PLATFORMS = ("local", "kubernetes", "slurm")  # that can make the nodes of a pool
SHORTEST = "the shortest pool file is: `pools: {default: {platform: local, max_nodes: 1}}`"
_MOST_NODES = 10_000
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?")  # names of pods begin with it


def _pool_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        hint = "up to 30 lower-case letters, digits and dashes, such as gpus"
        raise refusal(f"{name!r} cannot be the name of a pool", hint, code="pool-name-invalid")
    return name


def _url(text: str) -> str:
    parts = urlsplit(text)
    if text and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise refusal(f"{text!r} is not a URL", "such as http://login1:7070", code="coordinator-url-invalid")
    return text.rstrip("/")


class PoolSection(Section):
    """One pool."""

    platform: Annotated[Platforms, shorthand(lambda name: {"name": name}, str | Platforms)] = key(
        Platforms(), "Where nodes come from: local, kubernetes or slurm, or that platform's options as in a job file."
    )
    min_nodes: int = key(0, "Number of nodes to keep, even if nothing runs.", ge=0, le=_MOST_NODES)
    max_nodes: int = key(..., "Maximum number of nodes.", ge=1, le=_MOST_NODES)
    slots_per_node: Annotated[int, Field(ge=1, le=MOST_SLOTS)] | Literal["auto"] = key(
        "auto", "Number of slots of each node; auto: one per GPU, otherwise one per CPU."
    )
    idle: Duration = key(600.0, "Release a node on which nothing has run for this long.")
    time_limit: Duration | None = key(None, "Time limit of each node; its trials leave before it ends.")
    grace: Duration = key(60.0, "Time that trials have to save before their node ends.")
    patience: Duration = key(1800.0, "A node ends once the coordinator has been away for this long.")
    coordinator: Annotated[Line, AfterValidator(_url)] = key(
        "", "URL of the coordinator as the nodes reach it. Needed unless the nodes are local."
    )
    image: Line = key("", "Container image of the nodes, with Everstep. Kubernetes only, and needed there.")
    python: Line = key("", "Python of the nodes. Default: the one that runs the coordinator; in an image, its own.")
    setup: Texts = key((), "Shell lines that each node runs first: module load, …")
    env: dict[EnvName, Text] = key({}, "Environment variables of the nodes and their trials.")
    resources: Resources = key(Resources(), "Resources of each node.")
    volumes: tuple[Annotated[Volume, shorthand(parse_volume, str | Volume)], ...] = key(
        (), "Files mounted into the nodes: SOURCE:TARGET[:ro]. Kubernetes only."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> PoolSection:
        for problem, hint, code in self._problems():
            raise refusal(problem, hint, code=code)
        return self

    def _problems(self) -> list[tuple[str, str, str]]:
        name, is_local = self.platform.chosen, self.platform.chosen == "local"
        limit, lead = self.time_limit, self.grace
        found = [
            (name not in PLATFORMS, f"platform: {name} cannot create pool nodes", f"one of {', '.join(PLATFORMS)}"),
            (
                self.min_nodes > self.max_nodes,
                f"min_nodes: {self.min_nodes} is more than max_nodes: {self.max_nodes}",
                "lower min_nodes, or raise max_nodes",
            ),
            (
                limit is not None and limit <= lead,
                f"time_limit: {limit or 0:g} s, but trials leave {lead:g} s before it",
                "raise time_limit, or lower grace",
            ),
            (
                not is_local and not self.coordinator,
                "coordinator is missing: nodes on other machines need its URL",
                "coordinator: http://HOST:7070, an address that the nodes can reach",
            ),
            (name == "kubernetes" and not self.image, "image is missing: a pod has no other Python", "image: NAME"),
            (name != "kubernetes" and bool(self.image), f"image: not used on {name}", "use python or setup"),
            (name != "kubernetes" and bool(self.volumes), f"volumes: not used on {name}", "remove it"),
            (
                is_local and self.max_nodes > 1 and self.slots_per_node == "auto",
                f"slots_per_node: auto would give all of this machine to each of {self.max_nodes} nodes",
                "set a number of slots, or max_nodes: 1",
            ),
            (
                self.resources.slots_per_trial is not None or self.resources.min_slots is not None,
                "slots_per_trial and min_slots belong in an experiment file, not in a pool file",
                "to set the number of slots of each node, use slots_per_node",
            ),
        ]
        return [(problem, hint, "pool-invalid") for is_wrong, problem, hint in found if is_wrong]

    def spec(self) -> NodesSpec:
        return NodesSpec(
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            slots_per_node=0 if self.slots_per_node == "auto" else self.slots_per_node,
            idle_s=self.idle,
        )

    def job(self, name: str) -> Job:
        """What a node needs, in the form from which platforms render a job's nodes."""
        checkpoint = {"grace": self.grace}
        given = Job.model_validate({"name": name, "entrypoint": "pool", "checkpoint": checkpoint})
        return given.model_copy(
            update={
                "env": self.env,
                "image": self.image,
                "setup": self.setup,
                "resources": self.resources,
                "volumes": self.volumes,
                "platform": self.platform,
                "time_limit": self.time_limit,
            }
        )


class PersonSection(Section):
    """One person's part of each pool."""

    weight: float = key(1, "Weight of this person's share.", ge=LEAST_WEIGHT, le=MOST_WEIGHT, allow_inf_nan=False)
    quota: int | None = key(None, "Maximum number of slots for this person's trials in each pool.", ge=0)


PoolName = Annotated[str, AfterValidator(_pool_name)]


class PoolFileSection(Section):
    """A pool file."""

    model_config = ConfigDict(title="a pool file")

    pools: dict[PoolName, PoolSection] = key({}, "Pools by name; `default` is the one that experiments use.")
    people: dict[Text, PersonSection] = key({}, "People by the names in their tokens.")


_TEXTS = frozenset(paths_of_texts(PoolSection))  # below the name of a pool


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolFile:
    pools: Mapping[str, PoolSection]
    people: People


def read_pool_file(path: Path) -> PoolFile:
    return parse_pool_file(read_text(path), name=str(path))


def parse_pool_file(text: str, *, name: str = "pool file") -> PoolFile:
    tree = parse_mapping(text, name=name, shortest=SHORTEST)
    try:
        found = PoolFileSection.model_validate(tree.plain(_texts(tree)))
    except ValidationError as error:
        raise usage_error(problems_of(error, tree, PoolFileSection), name=name) from None
    if not (found.pools or found.people):
        raise UsageError(f"{name}: pools is empty", hint=SHORTEST, code="pool-file-empty")
    people = {who: Person(weight=each.weight, quota=each.quota) for who, each in found.people.items()}
    return PoolFile(pools=found.pools, people=People(known=people))


def _texts(tree: Tree) -> set[tuple[str, ...]]:
    pools = tree.at("pools")
    names = [name for name, _ in pools.children()] if pools is not None else []
    return {("pools", name, *path) for name in names for path in _TEXTS}
