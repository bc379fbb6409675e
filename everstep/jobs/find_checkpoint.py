"""Find a checkpoint of a submitted job by its UUID when its nodes and their files are gone: first at the job file's
place for checkpoints, then at the place in the coordinator's record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from everstep.checkpoint.find_uuid import find_below
from everstep.errors import UNKNOWN, EverstepError, Refused
from everstep.jobs.find_record import checkpoint_places, record_of
from everstep.jobs.submitted import load_all
from everstep.platforms.base import JobRecord
from everstep.record.about import STORE

Note = Callable[[str], None]


def find_in_jobs(uuid: str, note: Note) -> tuple[str, int] | None:
    """Its place and step, as this machine knows the place. Newest jobs first. `note` gets what was looked at."""
    jobs = load_all()
    places = dict.fromkeys(place for job in jobs for place in checkpoint_places(job.job))
    for here, there in places:
        if (found := find_at(here, uuid, note, saved_as=there)) is not None:
            return found
    found_in = (found for job in jobs if (found := _recorded(job, uuid, note)) is not None)
    return next(found_in, None)


def find_at(uri: str, uuid: str, note: Note, *, saved_as: str = "") -> tuple[str, int] | None:
    try:
        found = find_below(uri, uuid, saved_as=saved_as)
    except (EverstepError, OSError) as error:  # it may be in another place
        note(f"{uri} ({str(error).splitlines()[0]})")
        return None
    if found is None:
        note(uri)
    return found


def _recorded(job: JobRecord, uuid: str, note: Note) -> tuple[str, int] | None:
    from everstep.coordinator.finished_record import open_record  # late: a database takes long to import

    if (folder := record_of(job, [STORE])) is None:
        return None
    try:
        with open_record(folder, job.id) as record:
            saved = record.checkpoint(uuid)
    except EverstepError as error:
        is_unknown = isinstance(error, Refused) and error.status == UNKNOWN
        note(f"the record of {job.id}" + ("" if is_unknown else f" ({error.message})"))
        return None
    for here, there in checkpoint_places(job.job):
        if f"{saved.uri}/".startswith(f"{there}/"):
            return here + saved.uri.removeprefix(there), saved.step
    if "://" in saved.uri or Path(saved.uri).is_dir():
        return saved.uri, saved.step
    note(f"{saved.uri}, on the node of {job.id} that saved it")
    return None
