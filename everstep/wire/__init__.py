"""Every message between worker, agent and coordinator, as frozen values, in one namespace.

All under `/v1/jobs/{job}`; every call carries a bearer token. Knows nothing of HTTP or torch.

A module is imported when one of its names is used: to make all messages takes longer than most commands need for the
rest of their start, and each process uses few."""

# ruff: noqa: F403  a message is declared in one place, and found in this namespace without being listed again

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everstep.wire.agents import *
    from everstep.wire.encoding import *
    from everstep.wire.experiment_views import *
    from everstep.wire.experiments import *
    from everstep.wire.jobs import *
    from everstep.wire.logs import *
    from everstep.wire.membership import *
    from everstep.wire.metrics import *
    from everstep.wire.models import *
    from everstep.wire.page import *
    from everstep.wire.policy import *
    from everstep.wire.pool import *
    from everstep.wire.shards import *
    from everstep.wire.templates import *
    from everstep.wire.trials import *
else:
    _MODULES = (
        *("encoding", "jobs", "policy", "membership", "agents", "metrics", "logs", "shards"),
        *("experiments", "experiment_views", "trials", "pool", "page", "models", "templates"),
    )
    _places: dict[str, str] = {}  # the module of each name that is declared at the beginning of a line

    def __getattr__(name: str) -> Any:
        import importlib.util

        if not _places:
            _places.update(_read_places())
        first = _places.get(name)
        if first is None and importlib.util.find_spec(f"everstep.wire.{name}") is not None:
            return importlib.import_module(f"everstep.wire.{name}")  # `from everstep.wire import limits`
        for each in (first, *_MODULES) if first else _MODULES:
            module = importlib.import_module(f"everstep.wire.{each}")
            if hasattr(module, name):
                found = globals()[name] = getattr(module, name)  # looked for once: a coordinator uses them all the time
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def _read_places() -> dict[str, str]:
        """From their texts, which are read much sooner than they are run."""
        import re

        declared = re.compile(r"^(?:class |def )?([A-Za-z][\w, ]*?)(?=[(:]|: .* = | = )", re.MULTILINE)
        found: dict[str, str] = {}
        for each in reversed(_MODULES):  # of two with the same name, the first counts
            text = __spec__.loader.get_data(f"{__spec__.submodule_search_locations[0]}/{each}.py").decode()
            found |= {name: each for names in declared.findall(text) for name in names.split(", ")}
        return found


REALM = "everstep"  # a coordinator names it with a 401, which distinguishes it from other programs
