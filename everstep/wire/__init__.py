"""Every message between worker, agent and coordinator, as frozen values, in one namespace.

All under `/v1/jobs/{job}`; every call carries a bearer token. Knows nothing of HTTP or torch."""

# ruff: noqa: F403  a message is declared in one place, and found in this namespace without being listed again

from typing import TYPE_CHECKING, Any

from everstep.wire.agents import *
from everstep.wire.encoding import *
from everstep.wire.jobs import *
from everstep.wire.logs import *
from everstep.wire.membership import *
from everstep.wire.metrics import *
from everstep.wire.policy import *
from everstep.wire.shards import *

if TYPE_CHECKING:
    from everstep.wire.experiment_views import *
    from everstep.wire.experiments import *
    from everstep.wire.models import *
    from everstep.wire.page import *
    from everstep.wire.pool import *
    from everstep.wire.templates import *
    from everstep.wire.trials import *
else:
    _LATE = ("page", "experiments", "experiment_views", "trials", "pool", "models", "templates")

    def __getattr__(name: str) -> Any:
        """Messages about the page and experiments, made when one is used: workers, which use few, start sooner."""
        import importlib

        for late in _LATE:
            module = importlib.import_module(f"everstep.wire.{late}")
            if hasattr(module, name):
                found = globals()[name] = getattr(module, name)  # looked for once: a coordinator uses them all the time
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


REALM = "everstep"  # a coordinator names it with a 401, which distinguishes it from other programs
