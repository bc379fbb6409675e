"""`everstep e create --platform …`: options, and the pool that they ask the local service for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from everstep import env
from everstep.cli.experiment_link import ExperimentsOptions
from everstep.cli.options import refuse
from everstep.errors import UsageError
from everstep.jobs.options import NODES
from everstep.pool.experiment_pool import PoolRequest, described, request_for, unused_on
from everstep.settings import setting

_OF_PLATFORMS = ("PATH", "KUBECONFIG", "SLURM_CONF")  # how the command found the platform


@dataclass(frozen=True, kw_only=True)
class PlatformPoolOptions(ExperimentsOptions):
    platform: str | None = setting(
        None,
        "Create nodes for this experiment alone on local, kubernetes or slurm; release them when it ends or pauses",
        panel=NODES,
        metavar="NAME",
    )
    nodes: int | None = setting(
        None,
        "With --platform: number of nodes at most; default: nodes of the file, or 1",
        panel=NODES,
        metavar="N",
        least=1,
    )
    address: str | None = setting(
        None,
        "With --platform: name or address of this machine as the nodes reach it; default: the one that it reaches the "
        "platform's controller from",
        panel=NODES,
        metavar="HOST",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnPool:
    """The pool of one experiment."""

    request: PoolRequest
    changes: tuple[str, ...]  # of the experiment's file
    notes: tuple[str, ...]

    @property
    def line(self) -> str:
        return described(self.request)

    def ask_for(self) -> None:
        from everstep.pool.local_service import LocalFiles

        self.request.write(LocalFiles.of_user().pools)


def own_pool(options: PlatformPoolOptions, file: Path, changes: tuple[str, ...]) -> OwnPool | None:
    """The pool that --platform asks for; None without it."""
    if options.platform is None:
        refuse(("nodes", "address"), because="it needs --platform")
        return None
    refuse(("coordinator", "local"), because="--platform creates a pool at its own coordinator, on this machine")
    from everstep.job_file.experiment import load_experiment
    from everstep.job_file.load import NATIVE
    from everstep.jobs.new_experiments import request_of
    from everstep.platforms.base import platform_of
    from everstep.pool.platform_address import address_for

    loaded = load_experiment(file, changes)
    job, platform = loaded.job, options.platform
    if job.resources.pool:
        raise UsageError(
            f"resources.pool is {job.resources.pool}, but --platform {platform} creates its own pool",
            hint="remove resources.pool or --platform",
            code="pool-and-platform",
        )
    request = request_for(
        job,
        platform,
        experiment=request_of(loaded.spec, Path.cwd()),
        num_nodes=options.nodes,
        find_address=lambda: options.address or address_for(platform, job),
        env={name: value for name in _OF_PLATFORMS if (value := env.value(name))},
    )
    if (problem := platform_of(request.platform).detect()) is not None:
        raise UsageError(f"{platform} cannot be used from here: {problem}", code="platform-unusable")
    key = "resources.pool" if loaded.system == NATIVE else "resources.resource_pool"
    return OwnPool(request=request, changes=(f"{key}={request.pool}",), notes=tuple(unused_on(job, platform)))
