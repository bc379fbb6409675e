"""A cluster on this machine, for tests: real processes, real deaths, real cuts of the network.

    from everstep.testing import Cluster

    def test_a_killed_worker_does_not_change_the_weights():
        with Cluster(script="train.py", workers=3) as cluster:
            cluster.wait("step.committed", step=5)
            cluster.kill("w1")
            assert cluster.finish().weights_digest == EXPECTED

The script reports by events: `everstep.events.emit("result", weights_digest=…)`."""

from everstep.testing.cluster import Cluster, ClusterError, Result
from everstep.testing.network import can_make_hosts
from everstep.testing.simulated_pool import SimulatedPool, SimulatedRun, SimulatedTrial

__all__ = ["Cluster", "ClusterError", "Result", "SimulatedPool", "SimulatedRun", "SimulatedTrial", "can_make_hosts"]
