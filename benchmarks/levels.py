"""What sums in levels save: bytes and messages per worker, and the time of a step, with levels on and off.

Nodes are network namespaces on this machine, so their workers share its cores; what crosses the wire is counted at each
node's network card. The workers run an ElasticTrainer in a fixed world. Their weights must equal those of one worker
that computes all micro-batches, bit for bit. Needs root.

python benchmarks/levels.py [--nodes 8] [--workers 4] [--mb 8] [--steps 5] [--rounds 3]
last line JSON: {"on": {"wire_mb": …, "messages": …, "small_messages": …, "step_s": …}, "off": {…}, "wire_ratio": …,
"messages_ratio": …, "step_ratio": …, "are_bits_equal": …}; per worker and step. `messages`: over the network.
`small_messages`: over the Unix sockets of a node. The ratios: off divided by on."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
import everstep
from everstep.engine.group import Group
from everstep.engine.neighbors import Neighbor
from everstep.testing.network import Network

WARM_STEPS, PORT = 2, 29500  # each node has its own network, which no other program uses
MODES = {"on": "1", "off": "0"}


class Weights(nn.Module):
    """A megabyte per layer; gradients are cheap to compute, and adding them in another order gives other bits."""

    def __init__(self, size_mb: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(1)
        self.parts = nn.ParameterList(torch.randn(1 << 18, generator=random) for _ in range(size_mb))

    def forward(self, scale: torch.Tensor) -> torch.Tensor:
        return torch.stack([(part * part * scale).sum() for part in self.parts]).sum()


class Counter:
    """What this worker sends."""

    def __init__(self) -> None:
        self.messages = self.small_messages = 0
        send, send_small = Group.send, Neighbor.send

        def count(group: Group, *args: Any) -> Any:
            self.messages += 1
            return send(group, *args)

        def count_small(neighbor: Neighbor, *args: Any) -> None:
            self.small_messages += 1
            send_small(neighbor, *args)

        Group.send, Neighbor.send = count, count_small  # type: ignore[method-assign]

    def facts(self) -> dict[str, float]:
        return {"messages": self.messages, "small_messages": self.small_messages, "wire_bytes": _wire_bytes()}


def _wire_bytes() -> int:
    """What this node has sent so far."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        if line.strip().startswith("eth0:"):
            return int(line.split(":")[1].split()[8])
    return 0


def train(args: argparse.Namespace, micro_batches: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    counter = Counter()
    model = Weights(args.mb)
    random, num_steps = torch.Generator().manual_seed(2), WARM_STEPS + args.steps
    loader = everstep.DataLoader(torch.randn(micro_batches * num_steps, generator=random), batch_size=1)
    trainer = everstep.ElasticTrainer(model, loader, micro_batches=micro_batches)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=1e-3))
    before, started = counter.facts(), 0.0
    for scale in loader:
        if trainer.num_steps == WARM_STEPS and not started:
            before, started = counter.facts(), time.perf_counter()
        with trainer.step():
            optimizer.zero_grad()
            model(scale).backward()
            optimizer.step()
    step_s = (time.perf_counter() - started) / args.steps
    sent = {name: (value - before[name]) / args.steps for name, value in counter.facts().items()}
    digest = hashlib.sha256(b"".join(part.detach().numpy().tobytes() for part in model.parts)).hexdigest()
    return {"step_s": step_s, "digest": digest, **sent}


def fork_worker(args: argparse.Namespace, out: Path, variables: dict[str, str], micro_batches: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.environ.update(variables)
        out.write_text(json.dumps(train(args, micro_batches)))
        code = 0
    finally:
        os._exit(code)


def run_node(args: argparse.Namespace) -> None:
    """Run all rounds of one node's workers, which are forked from a process that has imported torch."""
    size, folder = args.nodes * args.workers, Path(args.folder)
    for number, mode in enumerate(list(MODES) * args.rounds):
        pids = []
        for place in range(args.workers):
            rank = args.node * args.workers + place
            variables = {
                "RANK": str(rank), "WORLD_SIZE": str(size),
                "MASTER_ADDR": args.master, "MASTER_PORT": str(PORT + number),
                "EVERSTEP_ADDRESS": args.address, "EVERSTEP_LEVELS": MODES[mode],
            }  # fmt: skip
            pids.append(fork_worker(args, folder / f"{number}-{rank}.json", variables, size))
        if any(os.waitpid(pid, 0)[1] for pid in pids):
            sys.exit(f"node {args.node}: a worker of round {number} failed")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    size = args.nodes * args.workers
    with tempfile.TemporaryDirectory() as folder, Network(args.nodes) as network:
        alone = Path(folder) / "alone.json"
        if os.waitpid(fork_worker(args, alone, {}, size), 0)[1]:
            sys.exit("the lone worker failed")
        nodes = [
            subprocess.Popen(
                [
                    *network.inside(host), sys.executable, __file__, *sys.argv[1:],
                    "--node", str(host - 1), "--folder", folder,
                    "--address", network.address(host), "--master", network.address(1),
                ],
                env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"},
            )
            for host in range(1, args.nodes + 1)
        ]  # fmt: skip
        codes = [node.wait() for node in nodes]
        if any(codes):
            sys.exit("a node failed")
        told: dict[str, list[list[dict[str, Any]]]] = {mode: [] for mode in MODES}
        for number, mode in enumerate(list(MODES) * args.rounds):
            told[mode].append(
                [json.loads((Path(folder) / f"{number}-{rank}.json").read_text()) for rank in range(size)]
            )
        expected = json.loads(alone.read_text())["digest"]
    found: dict[str, Any] = {mode: summary(rounds, args.workers) for mode, rounds in told.items()}
    digests = {each["digest"] for rounds in told.values() for ranks in rounds for each in ranks}
    for name in ("wire_mb", "messages", "step_s"):
        found[f"{name.split('_')[0]}_ratio"] = round(found["off"][name] / found["on"][name], 2)
    return (
        {"nodes": args.nodes, "workers_per_node": args.workers, "model_mb": args.mb}
        | found
        | {"are_bits_equal": digests == {expected}}
    )


def summary(rounds: list[list[dict[str, Any]]], per_node: int) -> dict[str, float]:
    """Per worker and step."""
    ranks = [each for ranks in rounds for each in ranks]
    wire = [
        each["wire_bytes"] for ranks in rounds for each in ranks[::per_node]
    ]  # one for each node, counted by its first worker
    return {
        "wire_mb": round(statistics.mean(wire) / per_node / 1e6, 3),
        "messages": round(statistics.mean(each["messages"] for each in ranks), 1),
        "small_messages": round(statistics.mean(each["small_messages"] for each in ranks), 1),
        "step_s": round(statistics.median(max(each["step_s"] for each in ranks) for ranks in rounds), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--workers", type=int, default=4, help="number of workers on each node")
    parser.add_argument("--mb", type=int, default=8, help="size of the gradients")
    parser.add_argument("--steps", type=int, default=5, help="number of measured steps")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds with levels on and off in turn")
    for name in ("--folder", "--address", "--master"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)
    parser.add_argument("--node", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.node is not None:
        run_node(args)
        return
    found = measure(args)
    for mode in MODES:
        print(f"levels {mode}: " + ", ".join(f"{name} {value}" for name, value in found[mode].items()))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
