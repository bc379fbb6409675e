"""Where a command's experiments are: at the coordinator that it names, otherwise on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from everstep import env
from everstep.cli.options import say
from everstep.jobs.options import NODES, CoordinatorOptions
from everstep.settings import setting

if TYPE_CHECKING:
    from everstep.jobs.coordinator_link import CoordinatorLink


@dataclass(frozen=True, kw_only=True)
class ExperimentsOptions(CoordinatorOptions):
    coordinator: str | None = setting(
        None,
        "URL of the coordinator; default: one on this machine, started if needed",
        panel=NODES,
        metavar="URL",
        variables=(env.COORDINATOR, env.DET_MASTER),
    )


@dataclass(frozen=True, kw_only=True)
class ExperimentOptions(ExperimentsOptions):
    experiment: int = setting(..., "The experiment's number", is_argument=True, metavar="ID", least=1)


def link_of(options: ExperimentsOptions, *, is_local: bool = False) -> CoordinatorLink:
    """A link to the coordinator. `is_local`: to this machine's, even if the environment names another."""
    from everstep.jobs.coordinator_link import CoordinatorLink  # late: a preview alone is quick
    from everstep.jobs.tokens import find_token

    if options.coordinator is not None and not is_local:
        url = options.coordinator if "://" in options.coordinator else f"http://{options.coordinator}"
        return CoordinatorLink(lambda: (url, find_token(options.token_file)), say=say)
    return CoordinatorLink(local_finder(say), is_local=True, say=say, claim=_claim)


def _claim() -> None:
    from everstep.pool.local_service import claim_local

    claim_local(say)


def local_line(link: CoordinatorLink) -> str:
    """A line that says that trials run on this machine, and on how many slots."""
    from everstep.pool.local_service import local_slots

    link.claim()
    link(lambda coordinator: coordinator.check())
    number = local_slots()
    slots = f"{number} slot{'s' * (number != 1)} on this machine"
    return f"local: {slots}; --coordinator URL selects a cluster"


def local_finder(tell: Callable[[str], None]) -> Callable[[], tuple[str, str]]:
    def find() -> tuple[str, str]:
        from everstep.pool.local_service import connect_local  # late: most commands have a coordinator

        url, token_file = connect_local(tell)
        return url, env.read_token(token_file)

    return find
