"""A newcomer that is held in its first body, at the gate first-WORKER (gates.py), while the others keep training."""

from __future__ import annotations

from everstep.testing import Result
from lab.stage import Stage


def warm(cluster: Stage, newcomer: str, *, since: int, until: int) -> None:
    """While the newcomer is in its first body, the others go from one gate to the next; then it becomes ready."""
    cluster.wait_at_gate(since)
    assert cluster.add() == [newcomer]
    cluster.wait_at_gate(f"first-{newcomer}")
    cluster.open_gate(since)
    cluster.wait("step.committed", worker="w0", step=until)
    assert cluster.events("worker.warmed") == []
    cluster.open_gate(f"first-{newcomer}")
    cluster.wait_ready(newcomer)
    cluster.open_gate(until)
    cluster.wait("step.committed", worker=newcomer)


def check_join(result: Result, newcomer: str, *, since: int, until: int) -> None:
    """No worker regrouped before the newcomer was warm, and it rehearsed once."""
    (warmed,) = result.events("worker.warmed")
    (begun,) = result.events("gate.reached", step=f"first-{newcomer}")
    (formed,) = result.events("generation.formed", worker="w0", generation=2)
    assert warmed["worker"] == newcomer and warmed["seconds"] > 0
    assert begun["t"] < warmed["t"] < formed["t"]
    meanwhile = [e["step"] for e in result.events("step.committed", worker="w0") if begun["t"] < e["t"] < warmed["t"]]
    assert set(meanwhile) >= set(range(since + 1, until + 1))
