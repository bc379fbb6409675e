"""Find the record of a job that is over: a run's folder, a submitted job's, or beside its checkpoints.

From a bucket it is fetched once, into this user's folder: only the files that are asked for, each compared with the
checksum in record.json. Fetched files are removed after some weeks."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import env
from everstep.errors import EverstepError, StorageUnreachable, UsageError
from everstep.job_file.order import record_place
from everstep.jobs.leave_record import place_beside, sha256_of
from everstep.jobs.submitted import find
from everstep.launcher import run_record
from everstep.platforms.base import JobRecord, platform_of
from everstep.record.about import ABOUT, FILES, METRICS, STORE, parse_about
from everstep.storage import private_file
from everstep.storage.shared_folder import SharedFolder, below

KEPT_DAYS = 30  # after they were fetched


def find_record(wanted: str, *, log_dir: Path, files: Sequence[str] = FILES) -> Path:
    """The folder with these files of a run's or a submitted job's record. `wanted` may also be the folder itself."""
    if is_record(Path(wanted)):
        return Path(wanted)
    if run := next(run_record.newest_first(log_dir, wanted), None):
        return run[0]
    record = find(wanted)
    if (found := record_of(record, files)) is not None:
        return found
    raise UsageError(
        f"{record.id}: neither its coordinator nor its record can be reached from here",
        hint=_where(record),
        code="record-not-found",
    )


def is_record(folder: Path) -> bool:
    return (folder / ABOUT).exists() or (folder / STORE).exists()


def record_of(record: JobRecord, files: Sequence[str] = FILES) -> Path | None:
    """None: it is not there, or cannot be reached."""
    here = Path(record.folder)
    if all((here / name).exists() for name in {STORE, *files} - {METRICS}):  # a job may have reported nothing
        return here
    for place in _places(record):
        try:
            if (found := _fetched(place, record.id, files)) is not None:
                return found
        except (EverstepError, OSError):  # another place may have it
            continue
    return None


def checkpoint_places(job: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Where a job's checkpoints may be: as this machine calls the place, and as the job does. None, if the job file
    names no place that outlives a node."""
    uri = record_place(_checkpoint_uri(job)).rstrip("/")
    if uri:
        yield uri, uri
    for volume in job.get("volumes") or ():  # on this machine, too, if it mounts the same
        target = str(volume.get("target", "")).rstrip("/") if isinstance(volume, Mapping) else ""
        if target and f"{uri}/".startswith(f"{target}/") and str(volume["source"]).startswith("/"):
            yield str(volume["source"]).rstrip("/") + uri.removeprefix(target), uri


def _places(record: JobRecord) -> Iterator[SharedFolder]:
    """Where the coordinator may have left it, as this machine knows the place."""
    for here, _there in checkpoint_places(record.job):
        yield SharedFolder(uri=place_beside(here, record.id))
    if "://" not in _checkpoint_uri(record.job) and (folder := platform_of(record.platform).record_folder(record)):
        yield SharedFolder(uri=place_beside(folder.uri, record.id), options=folder.options)


def _fetched(place: SharedFolder, job: str, files: Sequence[str]) -> Path | None:
    if (data := place.read(ABOUT)) is None:
        return None
    if (local := place.local) is not None:
        return local
    about, target = parse_about(data, below(place.uri, ABOUT)), env.home() / "records" / job
    _forget_old(target.parent)
    for name in files:
        known, path = about.files.get(name), target / name
        if known is None or (path.exists() and path.stat().st_size == known.size_bytes):
            continue
        aside = path.with_name(f".{name}")
        place.fetch(name, aside)
        if not aside.exists() or sha256_of(aside) != known.sha256:
            aside.unlink(missing_ok=True)
            raise StorageUnreachable(
                f"{below(place.uri, name)} does not match its checksum in {ABOUT}",
                hint="run the command again to fetch it again",
                code="record-damaged",
            )
        aside.replace(path)
    private_file.write(target / ABOUT, data)
    return target


def _forget_old(folder: Path) -> None:
    for path in folder.glob("*"):
        if path.stat().st_mtime < time.time() - KEPT_DAYS * 86_400:
            shutil.rmtree(path, ignore_errors=True)


def _where(record: JobRecord) -> str:
    uri = record_place(_checkpoint_uri(record.job))
    if not uri:
        return "set `checkpoint` in the job file to a URL or an absolute path: the record is saved beside checkpoints"
    where = place_beside(uri, record.id)
    return f"the record should be in {where}; on a machine that can read it, pass that folder instead of the ID"


def _checkpoint_uri(job: Mapping[str, Any]) -> str:
    given = job.get("checkpoint") or ""
    return str(given.get("uri", "") if isinstance(given, Mapping) else given)
