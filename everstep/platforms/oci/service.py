"""Calls to the Data Science and Logging Search services, in our terms."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from everstep.errors import PermanentError
from everstep.platforms.oci.access import Access, open_access, status_of, told
from everstep.platforms.oci.runs import OVER, OciRun, RunNames
from everstep.platforms.oci.search import MAX_RECORDS, LogRecord, SearchWindow, TooLarge, record_of
from everstep.waiting import wait_until

_ACTIVE_S = 120.0
_PAUSE_S = 0.5
_WRONG_STATE = 409
_NOT_THERE = 404


@dataclass(frozen=True, slots=True)
class Jobs:
    client: Any

    @classmethod
    def open(cls, access: Access) -> Jobs:
        with told("open the Data Science service"):
            return cls(access.client("data_science", "DataScienceClient"))

    def create(self, body: Mapping[str, Any]) -> str:
        """The Job's OCID, once it accepts runs."""
        with told("create the job"):
            created = self.client.create_job(create_job_details=dict(body)).data

        def look() -> Any:
            with told("look at the job"):
                job = self.client.get_job(created.id).data
            return job if job.lifecycle_state != "CREATING" else None

        job = created
        if job.lifecycle_state == "CREATING":
            job = wait_until(look, _ACTIVE_S, f"the job {created.id} to become active", pause_s=_PAUSE_S) or created
        if job.lifecycle_state != "ACTIVE":
            raise PermanentError(
                f"the job {job.id} is {job.lifecycle_state}: {job.lifecycle_details or 'no reason given'}",
                code="oci-job-not-active",
            )
        return str(job.id)

    def start(self, body: Mapping[str, Any]) -> str:
        with told(f"start {body['displayName']}"):
            return str(self.client.create_job_run(create_job_run_details=dict(body)).data.id)

    def runs(self, compartment: str, job_id: str, names: RunNames) -> list[OciRun]:
        """By rank. Runs made by hand are left out."""
        from oci.pagination import list_call_get_all_results

        with told("look at the job's runs"):
            found = list_call_get_all_results(self.client.list_job_runs, compartment, job_id=job_id).data
        runs = [
            OciRun(
                id=each.id,
                name=each.display_name,
                rank=rank,
                state=each.lifecycle_state,
                details=each.lifecycle_details or "",
            )
            for each in found
            if (rank := names.rank_of(each.display_name)) is not None
        ]
        return sorted(runs, key=lambda run: run.rank)

    def cancel(self, run: OciRun) -> None:
        """A run that is over, or leaving, is left alone."""
        from oci.exceptions import ServiceError

        with told(f"cancel {run.name}"):
            try:
                self.client.cancel_job_run(run.id)
            except ServiceError as error:
                if status_of(error) != _WRONG_STATE:
                    raise
                if (state := self.client.get_job_run(run.id).data.lifecycle_state) not in (*OVER, "CANCELING"):
                    raise PermanentError(
                        f"{run.name} is {state} and cannot be canceled: {error.message}", code="oci-run-not-cancelable"
                    ) from None

    def delete(self, job_id: str) -> None:
        from oci.exceptions import ServiceError

        with told(f"delete the job {job_id}"):
            try:
                self.client.delete_job(job_id, delete_related_job_runs=True)
            except ServiceError as error:
                if status_of(error) != _NOT_THERE:
                    raise


@dataclass(frozen=True, slots=True)
class Logs:
    client: Any

    @classmethod
    def open(cls, access: Access) -> Logs:
        with told("open the Logging Search service"):
            return cls(access.client("loggingsearch", "LogSearchClient"))

    def search(self, query: str, window: SearchWindow) -> list[LogRecord]:
        from oci.exceptions import ServiceError

        body = {
            "timeStart": _rfc3339(window.start),
            "timeEnd": _rfc3339(window.end),
            "searchQuery": query,
            "isReturnFieldInfo": False,
        }
        with told("search the job's log"):
            try:
                found = self.client.search_logs(search_logs_details=body, limit=MAX_RECORDS).data.results
            except ServiceError as error:
                if status_of(error) == 400 and "too large" in str(error.message).lower():
                    raise TooLarge from None
                raise
        return [record_of(result.data) for result in found or ()]


def cidr_of(access: Access, subnet: str) -> str:
    """The subnet's network; nodes have addresses outside of it, too."""
    with told(f"look at the subnet {subnet}"):
        return str(access.client("core", "VirtualNetworkClient").get_subnet(subnet).data.cidr_block)


def read_secrets(wanted: Mapping[str, str], endpoint: str) -> dict[str, str]:
    """Of a vault, read by a node as its own job run (resource principal). `wanted`: OCIDs by the names of variables."""
    if not wanted:
        return {}
    opened = open_access("resource_principal", "", endpoint)
    with told("open the Vault service"):
        client = opened.client("secrets", "SecretsClient")
    found = {}
    for name, ocid in wanted.items():
        with told(f"read the secret {name} ({ocid})"):
            content = client.get_secret_bundle(ocid).data.secret_bundle_content.content
        found[name] = base64.b64decode(content).decode()
    return found


def _rfc3339(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
