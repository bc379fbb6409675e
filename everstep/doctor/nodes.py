"""Judge nodes by their reports. A node is as good as its best link, so a slow neighbor does not count against it.
Pure: reports in, findings out."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from everstep.doctor.finding import Finding, error, ok, warning
from everstep.doctor.gpus import GpuLink, judge_gpu_links
from everstep.doctor.here import judge_skew
from everstep.wire import Fitness, from_json

PEER_LOST = 75  # exit code of a probe that lost the others: not its node's failure
SLOW = 2.0  # times slower than the median


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkReport:
    """The way from a node to another and back."""

    peer: int  # its rank
    latency_s: float = 0.0  # one way
    mb_per_s: float = 0.0
    problem: str = ""  # why nothing could be measured


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeReport:
    """What one node's probe says. Sent between nodes and printed as JSON: see wire.from_json."""

    rank: int
    node: str
    address: str
    python: str = ""
    torch: str = ""
    driver: str = ""  # NVIDIA's; "": there is none
    nccl: str = ""  # "": torch has none, or there is no GPU
    num_gpus: int = 0
    gflops: float | None = None  # of its slowest device
    device: str = ""  # which that is
    device_problem: str = ""
    group_problem: str = ""  # why torch could not form a plain gloo group, as scripts do
    clock_s: float | None = None  # how far the coordinator's clock is ahead
    links: list[LinkReport] = field(default_factory=list)  # those that it measured
    gpu_links: list[GpuLink] = field(default_factory=list)  # those that its GPUs measured
    gpu_problem: str = ""  # why they could not measure
    findings: list[Finding] = field(default_factory=list)  # of its machine


def read_reports(line: str) -> tuple[int, list[NodeReport]]:
    """What a probe prints: its rank, and what all nodes say."""
    told = json.loads(line)
    return told["rank"], [from_json(NodeReport, report) for report in told["reports"]]


def links_of(rank: int, reports: Sequence[NodeReport]) -> list[LinkReport]:
    """All links of a node, measured from either end."""
    return [link for report in reports for link in report.links if rank in (report.rank, link.peer)]


def best_mb_per_s(rank: int, reports: Sequence[NodeReport]) -> float | None:
    """None: nothing was measured; 0: no node could be reached."""
    return max((link.mb_per_s for link in links_of(rank, reports)), default=None)


def fitness_of(rank: int, reports: Sequence[NodeReport]) -> Fitness:
    (own,) = (report for report in reports if report.rank == rank)
    mb_per_s = best_mb_per_s(rank, reports)
    failure = own.device_problem
    if not failure and mb_per_s == 0.0:
        links = links_of(rank, reports)
        failure = f"it reaches none of {len(links)} nodes: {links[0].problem}"
    return Fitness(gflops=own.gflops, mb_per_s=mb_per_s or None, failure=failure)


def judge_node(rank: int, reports: Sequence[NodeReport]) -> list[Finding]:
    """What its probe and the others' say of a node; what its own machine says comes first."""
    (own,) = (report for report in reports if report.rank == rank)
    findings = [*own.findings, _speed(own, reports)]
    if len(reports) > 1:
        findings += [_network(rank, reports), _group(own), *_links(own, reports), *_versions(own, reports)]
        clocks = [report.clock_s for report in reports if report.clock_s is not None]
        if own.clock_s is not None and len(clocks) > 1:
            findings.append(judge_skew(abs(own.clock_s - statistics.median(clocks)), "most nodes"))
    return [*findings, *_gpus(own, reports)]


def _gpus(own: NodeReport, reports: Sequence[NodeReport]) -> list[Finding]:
    if own.gpu_problem:
        hint = 'NCCL_DEBUG=INFO shows more; backend="gloo" trains without NCCL'
        return [error("nccl", f"not measured: {own.gpu_problem}", hint)]
    links = [link for report in reports for link in report.gpu_links]
    return judge_gpu_links(own.rank, links, num_gpus=sum(report.num_gpus for report in reports))


def _speed(own: NodeReport, reports: Sequence[NodeReport]) -> Finding:
    if own.device_problem or own.gflops is None:
        return error("speed", own.device_problem or "not measured", "look at nvidia-smi and the kernel's log (dmesg)")
    median = statistics.median(report.gflops for report in reports if report.gflops is not None)
    text = f"{own.gflops:.0f} GFLOP/s on {own.device}"
    if own.gflops * SLOW < median:
        hint = "all nodes wait for the slowest: look for other load, heat and clocks, or leave it out (run --check)"
        return warning("speed", f"{text}, median {median:.0f}", hint)
    return ok("speed", text)


def _network(rank: int, reports: Sequence[NodeReport]) -> Finding:
    links = links_of(rank, reports)
    best = max(links, key=lambda link: link.mb_per_s)
    if best.mb_per_s == 0:
        hint = "look at firewalls, routes and --address"
        return error("network", f"it reaches none of {len(links)} nodes: {best.problem}", hint)
    median = statistics.median(best_mb_per_s(report.rank, reports) or 0.0 for report in reports)
    text = f"{_rate(best.mb_per_s)}, {_delay(min(link.latency_s for link in links if not link.problem))}"
    if best.mb_per_s * SLOW < median:
        hint = "all nodes wait for the slowest: look at its cable, interface and address, or leave it out (run --check)"
        return warning("network", f"{text}; median {_rate(median)}", hint)
    return ok("network", text)


def _links(own: NodeReport, reports: Sequence[NodeReport]) -> list[Finding]:
    """Of the links that this node measured, those that are bad though both ends have better ones."""
    names = {report.rank: report.node for report in reports}
    findings = []
    for link in own.links:
        usual = min(best_mb_per_s(end, reports) or 0.0 for end in (own.rank, link.peer))
        if link.mb_per_s * SLOW < usual:
            what = link.problem or f"{_rate(link.mb_per_s)}, while both ends have {_rate(usual)} to others"
            hint = "look between these two: switches, routes, firewalls"
            judged = error if link.problem else warning
            findings.append(judged("link", f"to {names[link.peer]}: {what}", hint))
    return findings


def _group(own: NodeReport) -> Finding:
    if own.group_problem:
        hint = "scripts that use gloo need it: see `name`, or set GLOO_SOCKET_IFNAME to the interface of the address"
        return warning("gloo", f"no plain group could be formed: {own.group_problem}", hint)
    return ok("gloo", "a plain group was formed")


_SAME = {
    "python": "use the same image or environment on all nodes",
    "torch": "use the same image or environment on all nodes",
    "nccl": "install the same torch on all nodes; until then, gradients travel over gloo",
    "driver": "install the same NVIDIA driver on all nodes; otherwise, NCCL may be slow or fail to connect",
}
_TITLES = {"nccl": "NCCL version"}  # "nccl" is the check that measures


def _versions(own: NodeReport, reports: Sequence[NodeReport]) -> list[Finding]:
    findings = []
    for what, hint in _SAME.items():
        versions = [getattr(report, what) for report in reports if getattr(report, what)]
        mine, usual = getattr(own, what), statistics.mode(versions or [""])
        if mine and mine != usual:
            findings.append(warning(_TITLES.get(what, what), f"{mine}, while most nodes have {usual}", hint))
    return findings


def _rate(mb_per_s: float) -> str:
    return f"{mb_per_s:.0f} MB/s" if mb_per_s >= 10 else f"{mb_per_s:.2g} MB/s"


def _delay(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"
