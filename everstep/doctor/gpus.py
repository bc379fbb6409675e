"""Which pairs of GPUs measure NCCL, and which pair or GPU is slow. Pure: reports in, findings out."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everstep.doctor.finding import Finding, error, ok, warning
from everstep.doctor.node_pairs import pairs

SLOW = 2.0  # times slower than the median of its kind: within a node, or between nodes
_WITHIN_HINT = "check `nvidia-smi topo -m` and `nvidia-smi nvlink -s`: a link may be down, or traffic may go over PCIe"
_BETWEEN_HINT = "check cables, switches, NCCL_SOCKET_IFNAME and NCCL_IB_HCA; NCCL_DEBUG=INFO shows NCCL's route"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    rank: int  # of its node
    node: str
    number: int

    def __str__(self) -> str:
        return f"GPU {self.number} of {self.node}"


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuLink:
    """NCCL between two GPUs, in both directions at once."""

    one: Gpu
    other: Gpu
    gb_per_s: float = 0.0  # in each direction
    problem: str = ""  # why nothing could be measured

    @property
    def is_within(self) -> bool:
        return self.one.rank == self.other.rank

    def has(self, gpu: Gpu) -> bool:
        return gpu in (self.one, self.other)


BROKEN = "gpus/broken"  # a key of the store: one of the measuring processes died


def key_of(one: Gpu, other: Gpu) -> str:
    """The key of their result in the store."""
    return f"gpus/{one.rank}.{one.number}-{other.rank}.{other.number}"


def gpus_of(nodes: Sequence[str], counts: Sequence[int]) -> list[Gpu]:
    """All GPUs, ordered by node and number."""
    return [
        Gpu(rank=rank, node=node, number=number)
        for rank, (node, count) in enumerate(zip(nodes, counts, strict=True))
        for number in range(count)
    ]


def gpu_rounds(gpus: Sequence[Gpu]) -> list[list[tuple[Gpu, Gpu]]]:
    """All pairs within each node; between neighbors in the ring of nodes, each GPU with the GPU of the same number. A
    node has one pair per round, so that no other traffic disturbs the measurement."""
    made: list[list[tuple[Gpu, Gpu]]] = []
    for pair in _pairs(gpus):
        free = next((each for each in made if not _nodes(each) & _nodes([pair])), None)
        if free is None:
            made.append([pair])
        else:
            free.append(pair)
    return made


def _pairs(gpus: Sequence[Gpu]) -> Iterator[tuple[Gpu, Gpu]]:
    by_node: dict[int, list[Gpu]] = {}
    for gpu in gpus:
        by_node.setdefault(gpu.rank, []).append(gpu)
    for own in by_node.values():
        yield from ((one, other) for index, one in enumerate(own) for other in own[index + 1 :])
    ranks = list(by_node)
    for first, second in pairs(len(ranks)):
        ones, others = by_node[ranks[first]], by_node[ranks[second]]
        for place in range(max(len(ones), len(others))):
            yield ones[place % len(ones)], others[place % len(others)]


def _nodes(pairs: Sequence[tuple[Gpu, Gpu]]) -> set[int]:
    return {gpu.rank for pair in pairs for gpu in pair}


def judge_gpu_links(rank: int, links: Sequence[GpuLink], *, num_gpus: int) -> list[Finding]:
    """Judge one node by comparing its links with those of all nodes. `num_gpus`: of all nodes together."""
    own = [link for link in links if rank in (link.one.rank, link.other.rank)]
    if num_gpus == 0:
        return [ok("nccl", "not measured: there is no GPU")]
    if not own:
        return [
            ok("nccl", "not measured: this node has no GPU" if num_gpus > 1 else "not measured: there is only one GPU")
        ]
    findings: list[Finding] = []
    for is_within, where in ((True, "within the node"), (False, "between nodes")):
        kind = [link for link in links if link.is_within == is_within]
        if any(rank in (link.one.rank, link.other.rank) for link in kind):
            findings += _judge_kind(rank, kind, where, _WITHIN_HINT if is_within else _BETWEEN_HINT)
    return findings


def _judge_kind(rank: int, links: Sequence[GpuLink], where: str, hint: str) -> Iterator[Finding]:
    """Broken links, GPUs whose links are all slow, other slow links; if there are none, how fast the links are."""
    bad = [link for link in links if _is_slow(link, links)]
    good = [link.gb_per_s for link in links if link not in bad]
    usual = f"the others reach {_rate(statistics.median(good))}" if good else "no other pair was measured"
    slow_gpus = _slow_gpus(links, bad)
    is_fine = True
    for gpu in slow_gpus:
        if gpu.rank == rank:
            is_fine = False
            own = [link for link in bad if link.has(gpu)]
            best = max(own, key=lambda link: link.gb_per_s)
            what = f"{_rate(best.gb_per_s)} at best" if best.gb_per_s else f"no link: {best.problem}"
            judged = warning if best.gb_per_s else error
            yield judged("nccl", f"{gpu}: {what}, to {len(own)} others {where}; {usual}", hint)
    for link in bad:
        if link.one.rank == rank and not any(link.has(gpu) for gpu in slow_gpus):
            is_fine = False
            judged = error if link.problem else warning
            what = link.problem or _rate(link.gb_per_s)
            yield judged("nccl", f"{link.one} to {link.other}: {what}; {usual}", hint)
    own_good = [link.gb_per_s for link in links if link not in bad and rank in (link.one.rank, link.other.rank)]
    if is_fine and own_good:
        low, high = _rate(min(own_good)), _rate(max(own_good))
        num = f"{len(own_good)} pair{'s' * (len(own_good) != 1)} of GPUs {where}"
        yield ok("nccl", f"{num}: {low}" if low == high else f"{num}: {low} to {high}")


def _is_slow(link: GpuLink, links: Sequence[GpuLink]) -> bool:
    """Whether the link is slow or broken."""
    measured = [each.gb_per_s for each in links if not each.problem]
    return bool(link.problem) or link.gb_per_s * SLOW < statistics.median(measured)


def _slow_gpus(links: Sequence[GpuLink], bad: Sequence[GpuLink]) -> list[Gpu]:
    """GPUs with two or more links, all of them bad, whose partners all have good links to other GPUs."""
    found = []
    for gpu in dict.fromkeys(gpu for link in bad for gpu in (link.one, link.other)):
        own = [link for link in links if link.has(gpu)]
        partners = [link.other if link.one == gpu else link.one for link in own]
        have_good = all(any(link.has(each) and link not in bad for link in links) for each in partners)
        if len(own) > 1 and all(link in bad for link in own) and have_good:
            found.append(gpu)
    return found


def _rate(gb_per_s: float) -> str:
    return f"{gb_per_s:.0f} GB/s" if gb_per_s >= 10 else f"{gb_per_s:.2g} GB/s"
