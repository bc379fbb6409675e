"""Where the nodes of a platform reach this machine, unless the user says it."""

from __future__ import annotations

import re

from everstep.addresses import address_towards
from everstep.errors import EverstepError, UsageError
from everstep.job_file.schema import Job
from everstep.platforms.batch_queue import ask

_CONTROLLER = re.compile(r"^SlurmctldHost\S*\s*=\s*([^\s(]+)(?:\(([^)]+)\))?", re.MULTILINE)


def address_for(platform: str, job: Job) -> str:
    """The address that this machine reaches the platform's controller from."""
    try:
        return address_towards(_controller(platform, job))
    except (EverstepError, OSError) as error:
        raise UsageError(
            f"cannot determine how nodes on {platform} reach this machine: {error}",
            hint="--address HOST: this machine's name or address, as the nodes see it",
            code="own-address-unknown",
        ) from None


def _controller(platform: str, job: Job) -> str:
    if platform == "slurm":
        said = ask(["scontrol", "show", "config"])
        found = _CONTROLLER.search(said)
        return (found[2] or found[1]) if found else "localhost"
    from everstep.platforms.kubernetes.cluster import Namespace

    options = job.platform.kubernetes
    return Namespace.open(context=options.context if options else "").server
