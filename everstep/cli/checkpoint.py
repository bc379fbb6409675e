"""`everstep checkpoint list, show, verify, export, prune`: the checkpoints of a folder or bucket. Without torch."""

from __future__ import annotations

import importlib
import json
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from everstep.checkpoint import keep_mark
from everstep.checkpoint.catalog import find, prune, verify
from everstep.checkpoint.export import export_safetensors, read_metas
from everstep.checkpoint.index import checkpoint_uuid
from everstep.checkpoint.manifest import RetentionPolicy, to_record
from everstep.checkpoint.policy import Found, Retention, best_first, decide_retention
from everstep.cli.options import command
from everstep.cli.tables import print_json, table
from everstep.errors import CheckpointBroken, NoCheckpoint, UsageError
from everstep.settings import setting
from everstep.storage.base import Storage, full_uri, open_storage

_WIDE = 200  # columns, where the output is not a terminal


@dataclass(frozen=True, kw_only=True)
class StorageOptions:
    uri: str = setting(..., "A folder, or a URL such as s3://bucket/run7", is_argument=True, metavar="URI")


@dataclass(frozen=True, kw_only=True)
class ListOptions(StorageOptions):
    json: bool = setting(False, "Print JSON instead of a table")


@dataclass(frozen=True, kw_only=True)
class ShowOptions(ListOptions):
    step: str = setting("latest", "latest, best, or the number of a step", metavar="STEP")


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(ListOptions):
    step: str | None = setting(None, "Only this one: latest, best, or the number of a step", metavar="STEP")


@dataclass(frozen=True, kw_only=True)
class ExportOptions(StorageOptions):
    target: Path = setting(..., "File to write", is_argument=True, metavar="FILE")
    step: str = setting("latest", "latest, best, or the number of a step", metavar="STEP")
    only: str = setting("", "Only this entry of the state, such as model", metavar="NAME")


@dataclass(frozen=True, kw_only=True)
class PruneOptions(ListOptions):
    keep_latest: int | None = setting(None, "Number of newest checkpoints to keep", metavar="N", least=1)
    keep_best: int | None = setting(None, "Number of best checkpoints to keep", metavar="N", least=0)
    metric: str | None = setting(None, "Metric that decides which is best", metavar="NAME")
    mode: str | None = setting(None, "min: smaller is better; max: larger is better", metavar="MODE")
    dry_run: bool = setting(False, "Only print what would be deleted")


@command(ListOptions, name="list")
def list_checkpoints(options: ListOptions) -> None:
    """List the checkpoints of a folder or bucket, oldest first, with their problems."""
    uri = options.uri
    if "://" not in (there := full_uri(uri)) and not Path(there).is_dir():
        hint = "give the folder that the script saves to, or a URI such as s3://bucket/prefix"
        raise UsageError(f"there is no folder {uri}", hint=hint, code="checkpoint-folder-missing")
    with closing(open_storage(uri)) as storage:
        found = find(storage)
        runs = [] if found else _runs_below(storage)
        marked = keep_mark.marked(storage.list())
    kept = decide_retention(found, policy_of(found), marked)
    if options.json:
        print_json([_row(each, kept, uri) for each in found])
        return
    if not found:
        click.echo(f"no checkpoints in {uri}" + (f" itself; runs below it: {', '.join(runs)}" if runs else ""))
        return
    columns = ("step", "generation", "saved", "size", "workers", "metrics", "state", "kept because", "uuid")
    rows = []
    for each in found:
        row = _row(each, kept, uri)
        metrics = ", ".join(f"{name} {value:.6g}" for name, value in each.metrics.items())
        saved = (row["step"], row["generation"], _time(each), _size(row["size_bytes"]), row["workers"] or "", metrics)
        rows.append((*saved, row["problem"] or "whole", row["kept"], row["uuid"]))
    _console().print(table(f"checkpoints in {uri}, oldest first", columns, rows))


@command(ShowOptions, name="show")
def show_checkpoint(options: ShowOptions) -> None:
    """Show one checkpoint: its manifest, its files, its tensors."""
    uri = options.uri
    with closing(open_storage(uri)) as storage:
        chosen = choose(find(storage), options.step, uri)
        if chosen.manifest is None or chosen.problem:
            hint = "`everstep checkpoint list` shows the others"
            raise NoCheckpoint(f"step {chosen.step}: {chosen.problem}", hint=hint, code="checkpoint-not-whole")
        metas = read_metas(storage, chosen.manifest)
    record = {"uuid": checkpoint_uuid(uri, chosen.step), **to_record(chosen.manifest)}
    if options.json:
        print_json(record | {"tensors": [{"name": m.name, "type": m.dtype, "shape": list(m.shape)} for m in metas]})
        return
    console = _console()
    facts = Table(title=f"{uri}/{chosen.key.folder}", title_justify="left", show_header=False)
    for name, value in record.items():
        if name not in ("files", "format"):
            facts.add_row(name, value if isinstance(value, str) else json.dumps(value))
    console.print(facts)
    files = [(file.name, _size(file.size_bytes)) for file in chosen.manifest.files]
    console.print(table("files", ("name", "size"), files))
    tensors = [(meta.name, meta.dtype, "×".join(map(str, meta.shape)) or "scalar") for meta in metas]
    console.print(table(f"{len(metas)} tensors", ("name", "type", "shape"), tensors, folds=True))


@command(VerifyOptions, name="verify")
def verify_checkpoints(options: VerifyOptions) -> int:
    """Read every byte and compare the checksums. Exit code 1 if a checkpoint that claims to be whole is broken."""
    with closing(open_storage(options.uri)) as storage:
        found = find(storage)
        chosen = found if options.step is None else [choose(found, options.step, options.uri)]
        problems = {each.key.folder: list(verify(storage, each)) for each in chosen}
    incomplete = {each.key.folder for each in chosen if each.manifest is None and each.problem.startswith("incomplete")}
    num_broken = sum(bool(each) for name, each in problems.items() if name not in incomplete)
    if options.json:
        print_json([{"checkpoint": name, "problems": each} for name, each in problems.items()])
    else:
        for name, each in problems.items():
            click.echo(f"{name}: {'whole' if not each else ''}{'; '.join(each)}")
        click.echo(f"{len(problems)} checked, {num_broken} broken, {len(incomplete)} incomplete")
    return int(num_broken > 0 or not chosen)


@command(ExportOptions, name="export")
def export_checkpoint(options: ExportOptions) -> None:
    """Write one checkpoint as a single FILE: NAME.safetensors or NAME.pt."""
    target = options.target
    if target.suffix not in (".safetensors", ".pt"):
        hint = "the suffix chooses the format"
        raise UsageError(f"{target} is neither .safetensors nor .pt", hint=hint, code="export-format-unknown")
    if not target.parent.is_dir():
        hint = "create it first, or give another path"
        raise UsageError(f"there is no folder {target.parent}", hint=hint, code="export-folder-missing")
    with closing(open_storage(options.uri)) as storage:
        chosen = choose(find(storage), options.step, options.uri)
        if target.suffix == ".safetensors":
            export_safetensors(storage, chosen, target, only=options.only)
        else:
            _export_pt(storage, chosen, target, options.only)
    click.echo(f"step {chosen.step} → {target}, {_size(target.stat().st_size)}")


@command(PruneOptions, name="prune")
def prune_checkpoints(options: PruneOptions) -> None:
    """Delete checkpoints that the retention rule does not keep. Without options, that is the rule of the newest
    checkpoint."""
    is_dry = options.dry_run
    names = ("keep_latest", "keep_best", "metric", "mode")
    given: dict[str, Any] = {name: value for name in names if (value := getattr(options, name)) is not None}
    with closing(open_storage(options.uri)) as storage:
        policy = replace(policy_of(find(storage)), **given)
        _check_newest(storage, prune(storage, policy, is_dry=True))
        decision = prune(storage, policy, is_dry=is_dry)
    if options.json:
        deleted = {key.folder: why for key, why in decision.delete.items()}
        kept = {key.folder: why for key, why in decision.keep.items()}
        print_json({"deleted": deleted, "kept": kept, "dry_run": is_dry})
        return
    for key, why in decision.delete.items():
        click.echo(f"{'would delete' if is_dry else 'deleted'} {key.folder}: {why}")
    for key, why in decision.keep.items():
        click.echo(f"kept {key.folder}: {why}")


def _check_newest(storage: Storage, decision: Retention) -> None:
    """Read it before others are deleted in its favor: until then only its sizes are known."""
    newest = max((each for each in find(storage) if each.is_whole), key=lambda each: each.key, default=None)
    if newest is None or not decision.delete:
        return
    for problem in verify(storage, newest):
        told = f"nothing is deleted, because the newest checkpoint is broken: {problem}"
        hint = f"delete {newest.key.folder} first, if you do not need it"
        raise CheckpointBroken(told, hint=hint, code="newest-checkpoint-broken")


def choose(found: list[Found], step: str, uri: str) -> Found:
    whole = [each for each in reversed(found) if each.is_whole]
    if step == "latest":
        chosen = whole
    elif step == "best":
        chosen = best_first(whole, policy_of(found))
    elif step.isdecimal():
        chosen = [each for each in reversed(found) if each.step == int(step)]
    else:
        raise UsageError(f"--step {step}", hint="give latest, best or a number", code="step-unknown")
    if not chosen:
        steps = ", ".join(str(each.step) for each in whole) or "none"
        hint = f"steps with whole checkpoints: {steps}"
        raise NoCheckpoint(f"no checkpoint {step!r} in {uri}", hint=hint, code="checkpoint-not-found")
    return chosen[0]


def policy_of(found: list[Found]) -> RetentionPolicy:
    """The rule in the newest checkpoint's own manifest."""
    return next((each.manifest.policy for each in reversed(found) if each.manifest is not None), RetentionPolicy())


def _export_pt(storage: Storage, chosen: Found, target: Path, only: str) -> None:
    # By name, at the call: this is the one command that needs torch, and the others must start without it.
    try:
        module: Any = importlib.import_module("everstep.checkpoint.load")
    except ModuleNotFoundError as error:
        hint = "export to .safetensors, or pip install torch"
        raise UsageError(f"a .pt file needs torch: {error}", hint=hint, code="torch-missing") from error
    module.export_pt(storage, chosen, target, only=only)


def _runs_below(storage: Storage) -> list[str]:
    """The folders of a Trainer's runs: NAME-DIGEST/N."""
    names = [name for name, size in storage.list().items() if size is None]
    return [f"{name}/{run}" for name in sorted(names) for run in sorted(storage.list(name)) if run.isdecimal()]


def _row(found: Found, kept: Retention, uri: str) -> dict[str, Any]:
    manifest = found.manifest
    return {
        "uuid": checkpoint_uuid(uri, found.step),
        "step": found.step,
        "generation": found.key.generation,
        "time": manifest.time if manifest else None,
        "size_bytes": manifest.size_bytes if manifest else None,
        "workers": manifest.world_size if manifest else None,
        "metrics": to_record(manifest)["metrics"] if manifest else {},
        "problem": found.problem,
        "kept": kept.keep.get(found.key, ""),
    }


def _time(found: Found) -> str:
    if found.manifest is None:
        return ""
    return datetime.fromtimestamp(found.manifest.time, timezone.utc).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return ""
    size, units = float(size_bytes), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"


def _console() -> Console:
    console = Console(markup=False, highlight=False)
    return console if console.is_terminal else Console(markup=False, highlight=False, width=_WIDE)


COMMANDS = {
    "list": list_checkpoints,
    "show": show_checkpoint,
    "verify": verify_checkpoints,
    "export": export_checkpoint,
    "prune": prune_checkpoints,
}
