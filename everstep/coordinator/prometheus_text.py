"""Numbers about the coordinator in Prometheus's text format, and the counters and histograms that it reads.

Pure; knows neither HTTP nor what the numbers mean. A family with too many label sets is cut: a name that anyone may
choose, such as a pool's, must not fill a monitoring system."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_LABEL_SETS = 500  # of a family
PREFIX = "everstep_"
_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    value: float
    labels: Labels = ()
    suffix: str = ""  # of the family's name


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    name: str  # without the prefix
    kind: str  # gauge, counter, histogram
    text: str
    samples: Sequence[Sample]


@dataclass(slots=True, eq=False)
class Histogram:
    """Of durations in seconds. Written by one thread; a reader may miss the newest one."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS_S) + 1))  # those up to each bound
    sum_s: float = 0.0

    def note(self, seconds: float) -> None:
        self.counts[bisect_left(_BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def samples(self) -> list[Sample]:
        bounds = [*(f"{bound:g}" for bound in _BOUNDS_S), "+Inf"]
        sums = list(accumulate(self.counts))
        buckets = [
            Sample(value=number, labels=(("le", bound),), suffix="_bucket")
            for bound, number in zip(bounds, sums, strict=True)
        ]
        return [*buckets, Sample(value=self.sum_s, suffix="_sum"), Sample(value=sums[-1], suffix="_count")]


def gauge(name: str, text: str, value: float) -> Family:
    return Family(name=name, kind="gauge", text=text, samples=[Sample(value=value)])


def counter(name: str, text: str, value: float) -> Family:
    return Family(name=name, kind="counter", text=text, samples=[Sample(value=value)])


def by_label(
    name: str, text: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float], *, kind: str = "gauge"
) -> Family:
    samples = [
        Sample(value=value, labels=tuple(zip(labels, names, strict=True))) for names, value in sorted(values.items())
    ]
    return Family(name=name, kind=kind, text=text, samples=samples)


def histogram(name: str, text: str, measured: Histogram) -> Family:
    return Family(name=name, kind="histogram", text=text, samples=measured.samples())


def render(families: Iterable[Family]) -> str:
    return "".join(f"{line}\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    name = PREFIX + family.name
    yield f"# HELP {name} {_escaped(family.text)}"
    yield f"# TYPE {name} {family.kind}"
    for each in family.samples[:MOST_LABEL_SETS]:
        labels = ",".join(f'{label}="{_quoted(value)}"' for label, value in each.labels)
        yield f"{name}{each.suffix}{f'{{{labels}}}' if labels else ''} {_number(each.value)}"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")
