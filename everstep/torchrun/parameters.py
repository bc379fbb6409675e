"""What torchrun says of the rendezvous, as a value: `--rdzv-endpoint`, `--rdzv-id`, `--nnodes`, `--rdzv-conf`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from everstep.errors import UsageError
from everstep.launcher.endpoint import Endpoint, as_job_id
from everstep.launcher.torchrun_options import parse_endpoint

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousParameters


@dataclass(frozen=True, kw_only=True, slots=True)
class MeetingOptions:
    endpoint: Endpoint
    run_id: str
    min_nodes: int
    max_nodes: int
    address: str | None = None  # where other nodes reach this one
    is_host: bool | None = None  # whether the endpoint is on this node; None: find out
    join_s: float | None = None
    last_call_s: float | None = None
    token_file: Path | None = None

    @property
    def job(self) -> str:
        return as_job_id(self.run_id)


def read_parameters(parameters: RendezvousParameters) -> MeetingOptions:
    if not parameters.endpoint:
        problem = "no --rdzv-endpoint: the nodes need a place to meet"
        raise UsageError(problem, hint="--rdzv-endpoint HOST:PORT", code="rdzv-endpoint-missing")
    join_s, last_call_s = parameters.get("join_timeout"), parameters.get("last_call_timeout")
    token_file = parameters.get("token_file")
    return MeetingOptions(
        endpoint=parse_endpoint(parameters.endpoint),
        run_id=parameters.run_id,
        min_nodes=parameters.min_nodes,
        max_nodes=parameters.max_nodes,
        address=parameters.local_addr,
        is_host=parameters.get_as_bool("is_host"),
        join_s=None if join_s is None else float(join_s),
        last_call_s=None if last_call_s is None else float(last_call_s),
        token_file=None if token_file is None else Path(token_file),
    )
