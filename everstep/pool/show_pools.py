"""A checked pool file, as text: its pools and people, and what is submitted for each node."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from everstep.job_file.quantity import format_seconds
from everstep.job_file.tree import dump
from everstep.pool.join_command import JoinPlace
from everstep.pool.node_folders import MadeNode
from everstep.pool.pool_file import PoolSection, read_pool_file

_EXAMPLE = 0  # the number of the node that is shown


def show_pools(path: Path, *, is_whole: bool) -> str:
    file = read_pool_file(path)
    lines = [_pool(name, section) for name, section in file.pools.items()]
    for who, person in file.people.known.items():
        quota = "no quota" if person.quota is None else f"at most {person.quota} slots in each pool"
        lines.append(f"{who}: weight {person.weight:g}, {quota}")
    if is_whole:
        folder = path.with_name(f"{path.name}.nodes").resolve()
        lines += [text for name, section in file.pools.items() for text in _node(name, section, folder / name)]
    return "\n".join(lines)


def _pool(name: str, section: PoolSection) -> str:
    is_auto = section.slots_per_node == "auto"
    slots = "one slot per GPU (or per CPU without GPUs)" if is_auto else f"{section.slots_per_node} slots each"
    limit = "" if section.time_limit is None else f", for {format_seconds(section.time_limit)} each"
    return (
        f"pool {name}: {section.min_nodes} to {section.max_nodes} nodes from {section.platform.chosen}, {slots}{limit}"
        f"; released after {format_seconds(section.idle)} without work"
    )


def _node(name: str, section: PoolSection, folder: Path) -> Iterator[str]:
    """What `nodes_keeper` would submit."""
    url = section.coordinator or "URL-of-this-coordinator"
    made = MadeNode(number=_EXAMPLE, name=f"{name}-{_EXAMPLE}", made_at=0.0)
    place = JoinPlace(pool=name, coordinator=url, token_file=str(folder / "token"))
    yield f"# --- a node of pool {name}"
    if section.platform.chosen == "kubernetes":
        from everstep.pool.kubernetes_nodes import KubernetesNodes

        nodes = KubernetesNodes(section, JoinPlace(pool=name, coordinator=url), folder, name, "")
        yield dump(nodes.pod(_EXAMPLE))
    elif section.platform.chosen == "slurm":
        from everstep.pool.slurm_nodes import node_script

        yield node_script(section, place, f"everstep-{name}", made, folder / str(_EXAMPLE))
    else:
        from everstep.pool.local_nodes import node_command

        yield shlex.join(node_command(section, place, made, folder / str(_EXAMPLE), lock=3))
