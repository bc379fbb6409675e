"""Every message between worker, agent and coordinator, as frozen values, in one namespace.

All under `/v1/jobs/{job}`; every call carries a bearer token. Knows nothing of HTTP or torch."""

# ruff: noqa: F403  a message is declared in one place, and found in this namespace without being listed again

from everstep.wire.agents import *
from everstep.wire.encoding import *
from everstep.wire.jobs import *
from everstep.wire.logs import *
from everstep.wire.membership import *
from everstep.wire.metrics import *
from everstep.wire.policy import *
from everstep.wire.shards import *

REALM = "everstep"  # a coordinator names it with a 401, which distinguishes it from other programs
