"""Leave the record of a job that is over where its submitter finds it: in the job's folder, and beside its checkpoints.

Before the coordinator releases its pod or allocation. Files are copied piece by piece, record.json last, so a copy
with it is whole; a copy that was interrupted is made again. The job's result never depends on it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from everstep import __version__, env
from everstep.checkpoint.catalog import find
from everstep.checkpoint.index import checkpoint_uuid
from everstep.checkpoint.policy import Found
from everstep.errors import EverstepError, StorageUnreachable
from everstep.job_file.order import NodeOrder, is_for_storage
from everstep.record.about import ABOUT, FILES, CopiedFile, RecordAbout
from everstep.record.argument_masks import is_secret_name, mask_urls, masked_arguments, masked_line, secret_values
from everstep.record.log_masks import MASK, Masks
from everstep.storage import private_file
from everstep.storage.base import Storage, open_storage
from everstep.storage.shared_folder import SharedFolder, below
from everstep.storage.sqlite_copy import copy_sqlite

LEAVE_S = 300.0  # for a copy, which is long for gigabytes
LIST_S = 30.0  # for a list of the checkpoints
MOST_CHECKPOINTS = 1000  # the newest
_PIECE_BYTES = 1 << 20

_T = TypeVar("_T")


def place_beside(checkpoints: str, job: str) -> str:
    return below(checkpoints, f"record/{job}")


def configuration_of(order: NodeOrder, hidden: Iterable[str] = ()) -> dict[str, Any]:
    """The order, but for values that may be secret. `hidden`: known values of secrets, masked wherever they are."""
    values = [*hidden, *secret_values(order.env)]
    told = {**asdict(order), "env": sorted(order.env), "secrets": list(order.secrets)}
    shown = {name: _masked(value, Masks(values)) for name, value in told.items()}
    return shown | {"args": masked_arguments(order.args, values), "setup": [*map(masked_line, shown["setup"])]}


def _masked(value: Any, masks: Masks) -> Any:
    if isinstance(value, str):
        return mask_urls(masks.apply_text(value))
    if isinstance(value, dict):
        shown = {name: _masked(each, masks) for name, each in value.items()}
        return {name: MASK if each and is_secret_name(str(name)) else each for name, each in shown.items()}
    return [_masked(each, masks) for each in value] if isinstance(value, list | tuple) else value


def write_about(folder: Path, about: RecordAbout) -> None:
    """In the job's own folder, where the files are already."""
    private_file.write(folder / ABOUT, replace(about, version=__version__).to_json())


def copy_record(
    folder: Path, about: RecordAbout, to: SharedFolder, *, checkpoints: str = "", deadline_s: float = LEAVE_S
) -> None:
    """Of a coordinator that has ended. A storage that does not answer is left alone after the deadline: a pod or an
    allocation must not stay for it. `checkpoints`: first list those there, for record.json here and in the copy."""

    def copy() -> None:
        listed = about
        if checkpoints and not about.checkpoints:
            listed = replace(about, checkpoints=checkpoints_at(checkpoints))
            write_about(folder, listed)
        _copy(folder, listed, to)

    _in_time(copy, f"copying to {to.uri}", deadline_s)


def add_checkpoints(folder: Path, about: RecordAbout, uri: str, *, deadline_s: float = LIST_S) -> None:
    """To the record.json in the job's own folder: those at `uri`, if they can be listed in time."""
    if uri:
        listed = _in_time(lambda: checkpoints_at(uri), f"listing the checkpoints in {uri}", deadline_s)
        write_about(folder, replace(about, checkpoints=listed))


def _in_time(work: Callable[[], _T], what: str, deadline_s: float) -> _T:
    done, errors = list[_T](), list[Exception]()

    def run() -> None:
        try:
            done.append(work())
        except Exception as error:  # raised by the thread that waits
            errors.append(error)

    working = threading.Thread(target=run, name="record copy", daemon=True)
    working.start()
    working.join(deadline_s)
    for error in errors:
        raise error
    if not done:
        raise StorageUnreachable(f"{what} did not finish within {deadline_s:g} s", code="record-not-copied")
    return done[0]


def _copy(folder: Path, about: RecordAbout, to: SharedFolder) -> None:
    """Nothing is done if it is there already."""
    if to.read(ABOUT) is not None:
        return
    aside, files = folder / ".record-copy", {}
    try:
        for name in FILES:
            if not (folder / name).exists():
                continue
            copy_sqlite(folder / name, aside)
            files[name] = CopiedFile(size_bytes=aside.stat().st_size, sha256=sha256_of(aside))
            to.send(name, aside)
        private_file.write(aside, replace(about, version=__version__, files=files).to_json())
        to.send(ABOUT, aside)
    finally:
        aside.unlink(missing_ok=True)


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def use_storage_variables(order: NodeOrder, secrets: Mapping[str, str]) -> None:
    """What workers know of their storage, such as keys and an endpoint, the coordinator needs as well."""
    known = env.everything()
    given = {name: value for name, value in {**order.env, **secrets}.items() if is_for_storage(name)}
    env.update({name: value for name, value in given.items() if name not in known})


def checkpoints_at(uri: str) -> tuple[Mapping[str, Any], ...]:
    """Those in the folder itself and, as a Trainer writes them, in NAME/N below it; none if it cannot be read."""
    if not uri:
        return ()
    found: list[Mapping[str, Any]] = []
    try:
        with closing(open_storage(uri)) as storage:
            for place in ("", *_runs_below(storage)):
                where = below(uri, place) if place else uri
                with closing(open_storage(where)) as run:
                    found += [_row(each, where) for each in find(run)]
    except (EverstepError, OSError):
        return ()
    return tuple(sorted(found, key=lambda each: (each["time"] or 0.0, each["step"]))[-MOST_CHECKPOINTS:])


def _runs_below(storage: Storage) -> list[str]:
    names = [name for name, size in storage.list().items() if size is None and name != "record"]
    return [f"{name}/{run}" for name in names for run in storage.list(name) if run.isdecimal()]


def _row(found: Found, uri: str) -> dict[str, Any]:
    manifest = found.manifest
    return {
        "uuid": checkpoint_uuid(uri, found.step),
        "uri": uri,
        "step": found.step,
        "time": manifest.time if manifest else None,
        "size_bytes": manifest.size_bytes if manifest else None,
        "workers": manifest.world_size if manifest else None,
        "metrics": {name: str(value) for name, value in found.metrics.items()},
        "problem": found.problem,
    }
