"""Series and windows as messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from everstep import wire
from everstep.record.pyramid import Span
from everstep.record.store import Series, Window
from everstep.wire import to_value


def series_list(found: Iterable[Series], num_series: int) -> wire.SeriesList:
    return wire.SeriesList(series=[_series_view(each) for each in found], num_series=num_series)


def _series_view(series: Series) -> wire.SeriesView:
    total = series.total
    return wire.SeriesView(
        series=series.series,
        name=series.name,
        count=total.num_points,
        first_step=total.first_step,
        last_step=total.last_step,
        last_time=total.last_time,
        last=to_value(total.last),
        least=_finite(total, total.least),
        most=_finite(total, total.most),
        nans=total.nans,
        infs=total.infs,
        negative_infs=total.negative_infs,
    )


def series_window(series: int, window: Window) -> wire.SeriesWindow:
    spans = window.spans
    is_points = all(each.num_points == 1 for each in spans)
    points = wire.SeriesWindow(
        series=series,
        name=window.name,
        start=window.start,
        stop=window.stop,
        num_points=sum(each.num_points for each in spans),
        num_rows=window.num_rows,
        span_steps=1 if is_points else window.span_steps,
        first_steps=[each.first_step for each in spans],
        first_times=[each.first_time for each in spans],
        firsts=[to_value(each.first) for each in spans],
    )
    if is_points:
        return points
    return replace(
        points,
        last_steps=[each.last_step for each in spans],
        last_times=[each.last_time for each in spans],
        lasts=[to_value(each.last) for each in spans],
        least=[_finite(each, each.least) for each in spans],
        most=[_finite(each, each.most) for each in spans],
        counts=[each.num_points for each in spans],
        nans=[each.nans for each in spans],
        infs=[each.infs for each in spans],
        negative_infs=[each.negative_infs for each in spans],
    )


def _finite(span: Span, value: float) -> float | None:
    """The least or greatest, if any value is finite."""
    return value if span.least <= span.most else None
