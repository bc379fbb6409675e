"""The record of a submitted job: enough to find it, inspect it, and add runs. Holds no secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from everstep.job_file.platform_options import Oci
from everstep.job_file.schema import Job
from everstep.platforms.base import JobRecord
from everstep.platforms.oci.access import Access, Auth, open_access
from everstep.platforms.oci.payload import tags
from everstep.platforms.oci.runs import RunNames


@dataclass(frozen=True, kw_only=True, slots=True)
class OciPlace:
    mode: str
    project: str
    compartment: str
    main_name: str
    worker_name: str
    log_group: str
    log: str  # "": the service makes one
    auth: Auth
    profile: str
    endpoint: str
    folder: str  # with what we have sent
    files: tuple[str, ...] = ()  # in it
    grace_s: float = 60.0
    tagged: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> RunNames:
        return RunNames(main=self.main_name, worker=self.worker_name)

    def open(self) -> Access:
        return open_access(self.auth, self.profile, self.endpoint)

    def to_natives(self) -> dict[str, Any]:
        return asdict(self)


def place_of(job: Job, options: Oci, *, folder: str, files: tuple[str, ...]) -> OciPlace:
    return OciPlace(
        mode=options.mode,
        project=options.project,
        compartment=options.compartment,
        main_name=options.main_name or f"{job.title}-main",
        worker_name=options.worker_name or f"{job.title}-worker",
        log_group=options.log_group,
        log=options.log,
        auth=options.auth,
        profile=options.profile,
        endpoint=options.endpoint,
        folder=folder,
        files=files,
        grace_s=job.checkpoint.grace,
        tagged=tags(options),
    )


def recall(record: JobRecord) -> OciPlace:
    told = dict(record.natives)
    return OciPlace(**{**told, "files": tuple(told["files"])})
