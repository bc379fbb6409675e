"""For stories that are not about time limits: nobody is lost by being slow."""

from __future__ import annotations

from everstep.wire import Policy

PATIENT = Policy(lease_s=600.0, arrive_s=600.0, stall_s=600.0)
