"""`everstep e pause, activate, cancel, kill, archive, unarchive, delete, wait, label, set`: change an experiment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import click

from everstep import wire
from everstep.cli.experiment_follow import Interrupted, exit_code, facts_of, follow, interruptible, print_end
from everstep.cli.experiment_link import ExperimentOptions, link_of, local_line
from everstep.cli.options import DeclaredCommand, command, say
from everstep.cli.printable import printable
from everstep.cli.scheduling_text import scheduling_text
from everstep.cli.tables import print_json
from everstep.job_file.quantity import parse_seconds
from everstep.jobs import experiments
from everstep.settings import setting
from everstep.wire.pool import LEAST_WEIGHT, MOST_PRIORITY, MOST_WEIGHT

_TEXTS = {
    "pause": "Pause an experiment: its trials save and free their slots.",
    "cancel": "End an experiment; its trials save first.",
    "kill": "End an experiment at once; its trials do not save.",
    "archive": "Hide an experiment from the list once it is over.",
    "unarchive": "Show an archived experiment in the list again.",
}


@dataclass(frozen=True, kw_only=True)
class ActOptions(ExperimentOptions):
    json: bool = setting(False, "Print JSON instead of a line")


@dataclass(frozen=True, kw_only=True)
class ActivateOptions(ActOptions):
    detach: bool = setting(False, "Return at once instead of showing the experiment until it ends", also=("-d",))


@dataclass(frozen=True, kw_only=True)
class DeleteOptions(ActOptions):
    yes: bool = setting(False, "Do not ask for confirmation", also=("-y",))


@dataclass(frozen=True, kw_only=True)
class WaitOptions(ExperimentOptions):
    polling_interval: float = setting(5.0, "Seconds between checks", metavar="S", above=0)


@dataclass(frozen=True, kw_only=True)
class LabelOptions(ActOptions):
    label: str = setting(..., "The label", is_argument=True, metavar="LABEL")


@dataclass(frozen=True, kw_only=True)
class TextOptions(ActOptions):
    text: str = setting(..., "The new text", is_argument=True, metavar="TEXT")


@dataclass(frozen=True, kw_only=True)
class PriorityOptions(ActOptions):
    priority: int = setting(
        ...,
        f"From 1 to {MOST_PRIORITY}; smaller numbers go first",
        is_argument=True,
        metavar="N",
        least=1,
        most=MOST_PRIORITY,
    )


@dataclass(frozen=True, kw_only=True)
class WeightOptions(ActOptions):
    weight: float = setting(
        ...,
        "Weight among experiments of equal priority; 2 gets twice as many slots as 1",
        is_argument=True,
        metavar="W",
        least=LEAST_WEIGHT,
        most=MOST_WEIGHT,
    )


@dataclass(frozen=True, kw_only=True)
class MaxSlotsOptions(ActOptions):
    max_slots: int = setting(
        ..., "Maximum number of slots for all trials together; 0: no limit", is_argument=True, metavar="N", least=0
    )


@dataclass(frozen=True, kw_only=True)
class TimeLimitOptions(ActOptions):
    limit: str = setting(
        ..., "Such as 90s, 1h30m or 1:30:00; none: no limit. Pauses do not count", is_argument=True, metavar="TIME"
    )


@dataclass(frozen=True, kw_only=True)
class KeepOptions(ActOptions):
    save_experiment_best: int | None = setting(
        None, "Number of best checkpoints of all trials to keep", metavar="N", least=0
    )
    save_trial_best: int | None = setting(
        None, "Number of best checkpoints of each trial to keep", metavar="N", least=0
    )
    save_trial_latest: int | None = setting(
        None, "Number of newest checkpoints of each trial to keep", metavar="N", least=0
    )
    yes: bool = setting(False, "Do not ask for confirmation", also=("-y",))


def _print(view: wire.ExperimentView, options: ActOptions) -> None:
    if options.json:
        print_json(asdict(view))
        return
    archived = " (archived)" if view.is_archived else ""
    reason = f": {view.reason}" if view.reason else ""
    click.echo(printable(f"experiment {view.experiment} {view.state}{archived}{reason}"))


def _acting(action: str) -> DeclaredCommand:
    def call(options: ActOptions) -> None:
        with link_of(options) as link:
            _print(experiments.act(link, options.experiment, action), options)

    call.__doc__ = _TEXTS[action]
    return command(ActOptions, name=action, no_args_is_help=True)(call)


@command(ActivateOptions, name="activate", no_args_is_help=True)
def activate(options: ActivateOptions) -> int:
    """Continue a paused experiment. On this machine, show it until it ends; Ctrl-C pauses it again."""
    with link_of(options) as link:
        if link.is_local and not options.json:
            click.echo(local_line(link))
        if options.json or options.detach or not link.is_local:
            _print(experiments.act(link, options.experiment, "activate"), options)
            return 0
        return follow(link, lambda: experiments.act(link, options.experiment, "activate").experiment)


@command(DeleteOptions, name="delete", no_args_is_help=True)
def delete(options: DeleteOptions) -> int:
    """Delete an experiment that is over, with its trials, logs, metrics and checkpoints."""
    with link_of(options) as link:
        name = link(lambda coordinator: coordinator.experiment(options.experiment)).name
        question = printable(
            f'Delete experiment {options.experiment} "{name}" with its trials, logs, metrics and checkpoints '
            "(to hide it instead, use `everstep e archive`)?"
        )
        if not options.yes and not click.confirm(question):
            return 1
        view = experiments.act(link, options.experiment, "delete")
    if options.json:
        _print(view, options)
    else:
        click.echo(printable(f"experiment {options.experiment} {view.reason}"))  # and which checkpoints stay
    return 0


@command(WaitOptions, name="wait", no_args_is_help=True)
def wait(options: WaitOptions) -> int:
    """Wait until an experiment is over. Exit code 0 if it completed. Ctrl-C ends the wait, not the experiment."""
    with link_of(options) as link:
        try:
            with interruptible():
                view = experiments.wait(link, options.experiment, options.polling_interval)
        except Interrupted as interrupted:
            say(f"experiment {options.experiment} continues")
            return 128 + interrupted.number
        print_end(link, replace(facts_of(link, options.experiment), view=view))
        return exit_code(view)


# --- what people write on it --------------------------------------------------------------------------


@click.group(no_args_is_help=True)
def label() -> None:
    """Add or remove a label."""


@click.group(name="set", no_args_is_help=True)
def set_() -> None:
    """Set an experiment's name, description, notes, checkpoints to keep, share of its pool, or time limit."""


def _labeling(name: str, *, is_wanted: bool, text: str) -> DeclaredCommand:
    def call(options: LabelOptions) -> None:
        with link_of(options) as link:
            view = experiments.relabel(link, options.experiment, options.label, is_wanted=is_wanted)
        if options.json:
            _print(view, options)
        else:
            click.echo(printable(f"experiment {options.experiment}: {', '.join(view.labels) or 'no labels'}"))

    call.__doc__ = text
    return command(LabelOptions, name=name, no_args_is_help=True)(call)


def _writing(name: str, change: Callable[[str], wire.ExperimentChange]) -> DeclaredCommand:
    def call(options: TextOptions) -> None:
        with link_of(options) as link:
            view = experiments.change(link, options.experiment, change(options.text))
        if options.json:
            _print(view, options)
        else:
            click.echo(f"experiment {options.experiment}: {name} set")

    call.__doc__ = f"Set the {name} of an experiment."
    return command(TextOptions, name=name, no_args_is_help=True)(call)


def _scheduling(options: ActOptions, message: wire.ExperimentChange) -> None:
    """Change how an experiment shares its pool, from the next decision on."""
    with link_of(options) as link:
        view = experiments.change(link, options.experiment, message)
    if options.json:
        _print(view, options)
    else:
        click.echo(printable(f"experiment {options.experiment}: pool {scheduling_text(view)}"))


@command(PriorityOptions, name="priority", no_args_is_help=True)
def set_priority(options: PriorityOptions) -> None:
    """Set the priority of an experiment in its pool."""
    _scheduling(options, wire.ExperimentChange(priority=options.priority))


@command(WeightOptions, name="weight", no_args_is_help=True)
def set_weight(options: WeightOptions) -> None:
    """Set the weight of an experiment among those of equal priority."""
    _scheduling(options, wire.ExperimentChange(weight=options.weight))


@command(MaxSlotsOptions, name="max-slots", no_args_is_help=True)
def set_max_slots(options: MaxSlotsOptions) -> None:
    """Limit the number of slots that all trials of an experiment use together."""
    _scheduling(options, wire.ExperimentChange(max_slots=options.max_slots))


@command(TimeLimitOptions, name="time-limit", no_args_is_help=True)
def set_time_limit(options: TimeLimitOptions) -> None:
    """Limit how long an experiment runs; then its trials save, and it is canceled."""
    limit_s = 0.0 if options.limit == "none" else parse_seconds(options.limit)
    _scheduling(options, wire.ExperimentChange(time_limit_s=limit_s))


@command(KeepOptions, name="gc-policy", no_args_is_help=True)
def gc_policy(options: KeepOptions) -> int:
    """Set how many checkpoints an experiment keeps, and delete all others."""
    with link_of(options) as link:
        old = link(lambda coordinator: coordinator.experiment(options.experiment)).kept
        given = {
            "experiment_best": options.save_experiment_best,
            "trial_best": options.save_trial_best,
            "trial_latest": options.save_trial_latest,
        }
        kept = replace(old, **{name: number for name, number in given.items() if number is not None})
        question = (
            f"Keep the {kept.experiment_best} best checkpoints of all trials, and the {kept.trial_best} best and "
            f"{kept.trial_latest} newest of each trial, and delete the others of experiment {options.experiment}?"
        )
        if not options.yes and not click.confirm(question):
            return 1
        _print(experiments.change(link, options.experiment, wire.ExperimentChange(kept=kept)), options)
    return 0


label.add_command(_labeling("add", is_wanted=True, text="Add a label to an experiment."))
label.add_command(_labeling("remove", is_wanted=False, text="Remove a label from an experiment."))
set_.add_command(_writing("name", lambda text: wire.ExperimentChange(name=text)))
set_.add_command(_writing("description", lambda text: wire.ExperimentChange(description=text)))
set_.add_command(_writing("notes", lambda text: wire.ExperimentChange(notes=text)))
for each in (gc_policy, set_priority, set_weight, set_max_slots, set_time_limit):
    set_.add_command(each)

COMMANDS = {
    **{action: _acting(action) for action in _TEXTS},
    "activate": activate,
    "unpause": activate,
    "delete": delete,
    "wait": wait,
    "label": label,
    "set": set_,
}
