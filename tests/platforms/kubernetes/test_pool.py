"""Pools whose nodes are pods of a real Kubernetes: they come with the demand, one dies, and all are let go."""

from __future__ import annotations

import json
from pathlib import Path

from everstep.addresses import address_towards
from lab.command import until
from lab.kubernetes.cluster import Lab
from lab.platform_pool import PlatformPool, lose_a_node_and_finish
from lab.pool_nodes import PoolFileStage
from lab.pool_platform_story import lose_a_node_and_let_go

IN_POOL = "app.kubernetes.io/managed-by=everstep,everstep.dev/number"


def test_nodes_are_pods_that_come_and_go(lab: Lab, tmp_path: Path) -> None:
    server = lab.kubectl("config", "view", "-o", "jsonpath={.clusters[0].cluster.server}")
    here = address_towards(server)
    tmp_path.chmod(0o777)
    needed = lab.job()
    options = {key: needed["platform"]["kubernetes"][key] for key in ("pull_policy", "tolerations")}
    pool = {
        "platform": {"kubernetes": options},
        "image": needed["image"],
        "env": {**needed["env"], "EVERSTEP_NURSERY": "off"},
        "volumes": [*needed["volumes"], {"source": str(tmp_path), "target": str(tmp_path)}],
        "max_nodes": 3,
        "slots_per_node": 1,
        "idle": "5s",
        "grace": "10s",
        "time_limit": "1h",
    }
    with PoolFileStage(tmp_path, pool, here, KUBECONFIG=lab.kubeconfig) as stage:

        def kill(node: str) -> None:
            (pod,) = lab.look("pods", f"{IN_POOL},everstep.dev/number={node.rpartition('-')[2]}")
            lab.kill_node(pod["spec"]["nodeName"])

        def shown() -> str:
            pods = lab.look("pods", IN_POOL)
            names = [each["metadata"]["name"] for each in pods]
            return "\n".join([json.dumps(pods), *(lab.kubectl("logs", each) for each in names)])

        try:
            lose_a_node_and_let_go(stage, kill, shown)
        finally:
            lab.revive_nodes()
        until(lambda: not _alive(lab), lambda: str(_alive(lab)))
    lab.kubectl("delete", "pods,secrets", "-l", "app.kubernetes.io/managed-by=everstep", "--ignore-not-found")


def test_a_search_for_which_kubernetes_makes_the_nodes(lab: Lab, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    needed = lab.job()
    pool = PlatformPool(tmp_path, "kubernetes", ("--nodes", "2"), EVERSTEP_NURSERY="off", KUBECONFIG=lab.kubeconfig)
    here = {"source": str(tmp_path), "target": str(tmp_path)}
    env = {**needed["env"], "EVERSTEP_NURSERY": "off"}
    pool.write_file(**{**needed, "env": env, "volumes": [*needed["volumes"], here]})

    def kill() -> None:
        name = _alive(lab)[0]
        lab.kubectl("delete", "pod", name, "--grace-period=0", "--force")

    try:
        lose_a_node_and_finish(pool, kill)
        assert not _alive(lab)
        until(lambda: not _left(lab), lambda: str(_left(lab)))  # the kubelets agree a little later
    finally:
        pool.shell.type("pool", "stop")


def _alive(lab: Lab) -> list[str]:
    phases = {each["metadata"]["name"]: each["status"]["phase"] for each in lab.look("pods", IN_POOL)}
    return [name for name, phase in phases.items() if phase in ("Pending", "Running")]


def _left(lab: Lab) -> list[str]:
    ours = "app.kubernetes.io/managed-by=everstep"
    return [each["metadata"]["name"] for kind in ("pods", "secrets") for each in lab.look(kind, ours)]
