"""Your own search method, with Determined's names: subclass `SearchMethod`, return operations from its handlers.

from everstep.searcher import Close, Create, SearchMethod, Shutdown, ValidateAfter"""

from __future__ import annotations

from everstep.searcher.operations import Close, Create, Operation, Progress, Shutdown, ValidateAfter
from everstep.searcher.search_method import ExitedReason, SearcherState, SearchMethod
from everstep.searcher.search_runner import LocalSearchRunner, RemoteSearchRunner

__all__ = [
    "SearchMethod",
    "LocalSearchRunner",
    "RemoteSearchRunner",
    "SearcherState",
    "ExitedReason",
    "Operation",
    "Create",
    "ValidateAfter",
    "Close",
    "Progress",
    "Shutdown",
]
