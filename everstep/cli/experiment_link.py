"""Where the experiments of a command are: at the coordinator that it names, or else on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from everstep import env
from everstep.cli.options import say
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.jobs.options import NODES, CoordinatorOptions
from everstep.jobs.tokens import find_token
from everstep.settings import setting


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
    """`is_local`: on this machine, even if the environment names a coordinator."""
    if options.coordinator is not None and not is_local:
        url = options.coordinator if "://" in options.coordinator else f"http://{options.coordinator}"
        return CoordinatorLink(lambda: (url, find_token(options.token_file)), say=say)
    return CoordinatorLink(local_finder(say), is_local=True, say=say)


def local_finder(tell: Callable[[str], None]) -> Callable[[], tuple[str, str]]:
    def find() -> tuple[str, str]:
        from everstep.pool.local_service import connect_local  # late: most commands have a coordinator

        url, token_file = connect_local(tell)
        return url, env.read_token(token_file)

    return find
