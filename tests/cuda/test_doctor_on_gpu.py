"""`everstep doctor` measures NCCL between two nodes that share one GPU: each claims to be its own host."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from lab.command import EVERSTEP, Command
from lab.ports import reserved_port

torch.cuda.init()  # here, because the driver's sockets stay open: no test should be blamed for them


def test_nccl_is_measured_between_nodes(tmp_path: Path) -> None:
    with reserved_port() as port:
        words = [*EVERSTEP, "doctor", "--json", "--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{port}"]
        nodes = []
        for number in range(2):
            folder = tmp_path / f"node{number}"
            folder.mkdir()
            own_host = {"NCCL_HOSTID": f"host{number}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
            nodes.append(
                Command(
                    *words,
                    folder=folder,
                    are_errors_apart=True,
                    HOME=str(tmp_path),
                    CUDA_VISIBLE_DEVICES="0",
                    OMP_NUM_THREADS="1",
                    **own_host,
                )
            )
        with nodes[0], nodes[1]:
            told = [json.loads(each.finish())["nodes"] for each in nodes]
    everywhere = next(found for found in told if len(found) == 2)
    for findings in everywhere.values():
        (nccl,) = (finding for finding in findings if finding["check"] == "nccl")
        assert nccl["level"] == "ok", nccl
        assert nccl["text"].startswith("1 pair of GPUs between nodes: ")
        assert not [finding for finding in findings if finding["check"] in ("NCCL version", "driver")]
