"""News of experiments, pools and queues: increments only, and only what someone follows.

Topics are named `experiments/`, `experiments/12`, `pools/default` and `queues/default`; no job is called like that.
What happens to experiments is noted here as it happens. Who holds which slots, and why trials wait, is compared with
what was sent before, a few times per second at most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everstep import wire
from everstep.coordinator.experiments.experiments import Experiments
from everstep.coordinator.experiments.facts import DELETED, Experiment, Trial
from everstep.coordinator.experiments.live import LiveExperiment
from everstep.coordinator.experiments.trial_columns import searched_hyperparameters, trial_columns
from everstep.coordinator.experiments.views import experiment_view
from everstep.coordinator.stream import LiveStream
from everstep.errors import Refused

EXPERIMENTS, POOLS, QUEUES = "experiments/", "pools/", "queues/"  # how topics begin
MOST_WATCHED = 500  # trials of an experiment that wait in the queue whose reasons are compared

Slots = Mapping[tuple[int, int], int]  # that trials hold, by experiment and trial


@dataclass(kw_only=True, slots=True)
class _News:
    """Of an experiment, since the last message about it."""

    live: LiveExperiment
    trials: set[int] = field(default_factory=set)
    results: list[tuple[int, int, Any, float]] = field(default_factory=list)  # trial, length, metric, time of day


class ExperimentFeed:
    def __init__(
        self,
        stream: LiveStream,
        experiments: Experiments,
        *,
        held: Callable[[], Slots],
        pool_view: Callable[[str], wire.PoolView],
        queue_view: Callable[[str], wire.QueueView],
    ) -> None:
        self._stream, self._experiments = stream, experiments
        self._held, self._pool_view, self._queue_view = held, pool_view, queue_view
        self._news: dict[int, _News] = {}
        self._views: dict[int, wire.ExperimentView] = {}  # of experiments that are over, and were changed
        # Experiments that changed since the last message about the list.
        self._of_list: dict[int, LiveExperiment | wire.ExperimentView] = {}
        self._slots: Slots = {}  # at the last look
        self._reasons: dict[int, dict[int, str]] = {}  # why trials wait, by followed experiment
        self._searched: dict[int, list[wire.SearchedHyperparameter]] = {}
        self._told: dict[str, dict[Any, Any]] = {}  # agents and queue entries, by topic

    # --- noting, which costs next to nothing where no one follows

    def note_changed(
        self, live: LiveExperiment, trials: Iterable[Trial], event: Mapping[str, Any] | None = None
    ) -> None:
        number = live.number
        is_detailed = self._stream.is_followed(f"{EXPERIMENTS}{number}")
        if not is_detailed and not self._stream.is_followed(EXPERIMENTS):
            return
        news = self._news.setdefault(number, _News(live=live))
        news.live = live
        if is_detailed:
            news.trials.update(each.number for each in trials)
            if event is not None and event["kind"] == "validated":
                news.results.append((event["trial"], event["length"], event["metric"], event["time"]))

    def note_view(self, view: wire.ExperimentView) -> None:
        """An experiment that is over was changed."""
        if self._stream.is_followed(EXPERIMENTS) or self._stream.is_followed(f"{EXPERIMENTS}{view.experiment}"):
            self._views[view.experiment] = view

    # --- telling

    def tell(self, has_list: bool) -> None:
        """What was noted. `has_list`: also what may be sent less often."""
        topics = [each for each in self._stream.topics() if "/" in each]
        if not topics:
            self._forget()
            return
        followed = {int(rest) for each in topics if (rest := each.removeprefix(EXPERIMENTS)) != each and rest}
        if any(each.startswith(EXPERIMENTS) for each in topics):
            self._look_at_slots()
            if has_list:
                self._look_at_reasons(followed)
            self._tell_experiments(followed)
        if EXPERIMENTS not in topics:
            self._of_list.clear()
        elif has_list:
            self._tell_list()
        if has_list:
            self._tell_pools(topics)

    def _forget(self) -> None:
        for each in (self._news, self._views, self._of_list, self._reasons, self._searched, self._told):
            each.clear()

    def _look_at_slots(self) -> None:
        """Trials that got slots or gave some back since the last look."""
        before, self._slots = self._slots, self._held()
        if before == self._slots:
            return
        changed: dict[int, list[int]] = defaultdict(list)
        for key in before.keys() | self._slots.keys():
            if before.get(key) != self._slots.get(key):
                changed[key[0]].append(key[1])
        for number, trials in changed.items():
            if live := self._experiments.live.get(number):
                self.note_changed(live, [live.trials[each] for each in trials if each in live.trials])

    def _look_at_reasons(self, followed: Iterable[int]) -> None:
        """Why the trials of these experiments wait now."""
        why, found = self._experiments.holder.why_queued, {}
        for number in followed:
            if (live := self._experiments.live.get(number)) is None:
                continue
            queued = [
                each for each in live.trials.values() if not each.is_over and (number, each.number) not in self._slots
            ]
            found[number] = {each.number: why(number, each.number) for each in queued[:MOST_WATCHED]}
            before = self._reasons.get(number, found[number])
            changed = [live.trials[trial] for trial, reason in found[number].items() if before.get(trial) != reason]
            if changed:
                self.note_changed(live, changed)
        self._reasons = found

    def _tell_experiments(self, followed: set[int]) -> None:
        news, self._news = self._news, {}
        views, self._views = self._views, {}
        for number in followed & (news.keys() | views.keys()):
            view = views.get(number) or self._view(news[number].live)
            self._stream.publish(f"{EXPERIMENTS}{number}", "experiment", self._told_of(view, news.get(number)))
        self._of_list.update({number: each.live for number, each in news.items()})
        self._of_list.update(views)

    def _tell_list(self) -> None:
        changed = [
            each if isinstance(each, wire.ExperimentView) else self._view(each) for each in self._of_list.values()
        ]
        self._of_list.clear()
        if changed:
            gone = [each.experiment for each in changed if each.state == DELETED]
            there = [each for each in changed if each.state != DELETED]
            self._stream.publish(EXPERIMENTS, "experiments", {"experiments": there, "removed": gone})

    def _view(self, live: LiveExperiment) -> wire.ExperimentView:
        return experiment_view(live.facts, live, live.trials, self._experiments.holder)

    def _told_of(self, view: wire.ExperimentView, news: _News | None) -> dict[str, Any]:
        if news is None:
            return {"experiment": view.experiment, "view": view, "trials": None, "results": []}
        live = news.live
        trials = [live.trials[each] for each in sorted(news.trials)]
        searched = self._searched_of(live.facts, live.trials.values())
        columns = trial_columns(live.facts, trials, self._experiments.holder, searched, last_event=live.last_event)
        return {"experiment": view.experiment, "view": view, "trials": columns, "results": news.results}

    def _searched_of(self, facts: Experiment, trials: Iterable[Trial]) -> list[wire.SearchedHyperparameter]:
        if (found := self._searched.get(facts.number)) is None:
            found = searched_hyperparameters(facts.spec, trials)
            if found and not any(each.least is None and not each.values for each in found):
                self._searched[facts.number] = found
        return found

    def _tell_pools(self, topics: Sequence[str]) -> None:
        self._told = {topic: told for topic, told in self._told.items() if topic in topics}
        for topic in topics:
            try:
                if topic.startswith(POOLS):
                    self._tell_pool(topic, self._pool_view(topic.removeprefix(POOLS)))
                elif topic.startswith(QUEUES):
                    self._tell_queue(topic, self._queue_view(topic.removeprefix(QUEUES)))
            except Refused:  # the pool has gone
                continue

    def _tell_pool(self, topic: str, view: wire.PoolView) -> None:
        counts = {name: getattr(view, name) for name in ("num_slots", "num_free", "num_queued", "num_wanted", "nodes")}
        change = self._change(topic, {each.agent: each for each in view.agents}, counts)
        if change is not None:
            agents, gone = change
            self._stream.publish(topic, "pool", {"pool": view.pool, **counts, "agents": agents, "gone": gone})

    def _tell_queue(self, topic: str, view: wire.QueueView) -> None:
        order = {"order": [each.experiment for each in view.entries], "num_waiting": view.num_waiting}
        change = self._change(topic, {each.experiment: each for each in view.entries}, order)
        if change is not None:
            self._stream.publish(topic, "queue", {"pool": view.pool, **order, "entries": change[0], "gone": change[1]})

    def _change(self, topic: str, now: dict[Any, Any], more: Mapping[str, Any]) -> tuple[list[Any], list[Any]] | None:
        """The new and different ones, and the keys of those that have gone; None: nothing has changed. All of it at
        first: what a reader has loaded may be older than this."""
        before = self._told.get(topic)
        self._told[topic] = {**now, None: more}
        if before is None:
            return list(now.values()), []
        changed = [each for key, each in now.items() if before.get(key) != each]
        gone = [key for key in before if key is not None and key not in now]
        return (changed, gone) if changed or gone or before[None] != more else None
