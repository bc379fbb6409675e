"""Problems of a job file as messages: line, key, number, and remedy. They never show values of secrets."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from everstep.errors import UsageError
from everstep.job_file.fields import blocks_in
from everstep.job_file.tree import Tree

_OTHERS_WORDS = {  # of users of other systems, by ours
    "entrypoint": "command script entryPoint run",
    "args": "arguments",
    "env": "environment envs",
    "nodes": "nnodes num_nodes replicas",
    "workers_per_node": "nproc nproc_per_node num_workers slots_per_trial",
    "cpu": "cpus ncpus",
    "memory": "mem",
    "gpu": "gpus ngpus",
    "shm": "shm_size",
    "restarts": "max_restarts",
    "hyperparameters": "hparams",
    "searcher": "search",
    "checkpoint": "checkpoint_storage",
    "time_limit": "walltime time",
    "pull_policy": "imagePullPolicy",
    "kubernetes": "k8s",
    "coordinator": "master",
}
_MEANT = {theirs: ours for ours, words in _OTHERS_WORDS.items() for theirs in words.split()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    text: str
    code: str
    hint: str | None = None
    line: int | None = None


def usage_error(problems: Sequence[Problem], *, name: str) -> UsageError:
    """One error for all of them, in the order of the file."""
    ordered = sorted(problems, key=lambda problem: problem.line or 0)
    if len(ordered) == 1:
        (only,) = ordered
        return UsageError(
            f"{name}{'' if only.line is None else f':{only.line}'}: {only.text}", hint=only.hint, code=only.code
        )
    lines = [f"{len(ordered)} problems in {name}"]
    for each in ordered:
        where = "" if each.line is None else f"line {each.line}: "
        lines.append(f"  {where}{each.text}{f' ({each.hint})' if each.hint else ''}")
    return UsageError("\n".join(lines), code="job-file-problems")


def problems_of(error: ValidationError, tree: Tree, model: type[BaseModel]) -> list[Problem]:
    """If a key may have several types, each of them reports; keep the report that got furthest."""
    found: dict[tuple[str, ...], Problem] = {}
    for each in error.errors(include_url=False):
        location = tuple(str(part) for part in each["loc"])
        path, line = _place(tree, location)
        is_missing = each["type"] == "missing"
        found.setdefault(location if is_missing else path, _problem(dict(each), path, line, model))
    return [problem for path, problem in found.items() if not any(_is_below(other, path) for other in found)]


def _is_below(path: tuple[str, ...], other: tuple[str, ...]) -> bool:
    return len(path) > len(other) > 0 and path[: len(other)] == other


def _place(tree: Tree, location: Sequence[str]) -> tuple[tuple[str, ...], int | None]:
    """The part that is in the file: pydantic adds names of its own."""
    path: tuple[str, ...] = ()
    line: int | None = None
    for part in location:
        if (below := dict(tree.children()).get(part)) is not None:
            path, tree = (*path, part), below
            line = below.line or line
    return path or tuple(location[:1]), line


def _problem(error: dict[str, Any], path: tuple[str, ...], line: int | None, model: type[BaseModel]) -> Problem:
    key = ".".join(path)
    context = error.get("ctx") or {}
    if error["type"] == "everstep":
        return Problem(
            text=f"{key}: {context['text']}" if key else context["text"],
            hint=context["hint"],
            line=line,
            code=context["code"],
        )
    if error["type"] == "extra_forbidden":
        known = _keys(model, path[:-1])
        where = (
            f"key of {'.'.join(path[:-1])}"
            if len(path) > 1
            else f"key of {model.model_config.get('title', 'a job file')}"
        )
        return Problem(
            text=f"{key} is not a {where}", hint=_did_you_mean(path[-1], known), line=line, code="job-file-key-unknown"
        )
    if error["type"] == "missing":
        missing = ".".join(str(part) for part in error["loc"])
        hint = "every job file needs it: `entrypoint: train.py`" if missing == "entrypoint" else None
        return Problem(text=f"{missing} is missing", hint=hint, line=line, code="job-file-key-missing")
    return Problem(
        text=f"{key}: {_shown(error, path)}", hint=_expected(error), line=line, code="job-file-value-invalid"
    )


def _shown(error: dict[str, Any], path: tuple[str, ...]) -> str:
    given = error["input"]
    if path[:1] == ("secrets",) or not isinstance(given, str | int | float | bool):
        names = {dict: "a mapping", list: "a list", tuple: "a list", type(None): "nothing"}
        return f"{names.get(type(given), 'this')} is not what is expected here"
    return f"{given!r} is not what is expected here"


def _expected(error: dict[str, Any]) -> str:
    expected = error["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    if error["type"] in ("model_type", "dict_type", "model_attributes_type"):
        return "a mapping: key: value"
    if error["type"] in ("list_type", "tuple_type"):
        return "a list: [a, b]"
    return str(expected)


def _keys(model: type[BaseModel], path: Iterable[str]) -> list[str]:
    """Of the block at this path."""
    blocks: list[type[BaseModel]] = [model]
    for part in path:
        fields = [block.model_fields[part] for block in blocks if part in block.model_fields]
        if fields:
            blocks = [each for field in fields for each in blocks_in(field.annotation)]
    return [name for block in blocks for name in block.model_fields]


def _did_you_mean(key: str, known: Sequence[str]) -> str:
    plain = key.replace("-", "_")
    near = difflib.get_close_matches(plain.lower(), known, n=1, cutoff=0.6)
    if plain in known:
        return f"did you mean {plain}?"
    if (meant := _MEANT.get(key)) in known:
        return f"did you mean {meant}?"
    if near:
        return f"did you mean {near[0]}?"
    return f"one of {', '.join(known)}" if len(known) <= 30 else "`everstep schema` lists all"
