"""`everstep e verify ID --trial N`: train a trial again, and compare it bit for bit."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import click

from everstep import wire
from everstep.cli.experiment_follow import Interrupted, interruptible
from everstep.cli.experiment_link import ExperimentOptions, link_of, local_line
from everstep.cli.experiment_show import print_rows
from everstep.cli.options import command, say
from everstep.cli.tables import print_json
from everstep.errors import Refused
from everstep.jobs import experiments
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.jobs.verification import Compared, compare, first_difference, kinds_note
from everstep.settings import setting
from everstep.wire.experiments import COMPLETED

_COLUMNS = ("length", "what", "kept", "again", "equal")
_SHOWN = 16  # characters of a digest
_EQUAL = {True: "yes", False: "no", None: "not saved again"}


@dataclass(frozen=True, kw_only=True)
class VerifyTrialOptions(ExperimentOptions):
    trial: int = setting(1, "Number of the trial in the experiment", metavar="N", least=1)
    json: bool = setting(False, "Print JSON instead of a table")


@command(VerifyTrialOptions, name="verify", no_args_is_help=True)
def verify(options: VerifyTrialOptions) -> int:
    """Train a trial again, and compare the digests of its weights at each validation and checkpoint.

    Exit code 0: all are equal; 1: some differ, or the trial could not be trained again."""
    with link_of(options) as link:
        trial = link(lambda coordinator: coordinator.trial(options.experiment, options.trial))
        link.claim()
        if link.is_local and not options.json:
            click.echo(local_line(link))
        kinds = _kinds(link, link(lambda it: it.experiment(options.experiment)).scheduling.pool)
        if kinds and (note := kinds_note(trial.kind, kinds)):
            say(note)
        message = wire.VerifyRequest(request=uuid.uuid4().hex)
        made = link(lambda coordinator: coordinator.verify_trial(options.experiment, options.trial, message))
        say(f"training trial {options.trial} of experiment {options.experiment} again, as experiment {made.experiment}")
        try:
            with interruptible():
                view = experiments.wait(link, made.experiment)
        except Interrupted as interrupted:
            experiments.act(link, made.experiment, "kill", "interrupted at the terminal")
            return 128 + interrupted.number
        if not kinds and (note := kinds_note(trial.kind, [_kind_of(link, made.experiment)])):
            say(note)  # before, no machine had joined
        rows = _compare(link, trial, made.experiment)
    return _tell(options, view, rows)


def _kinds(link: CoordinatorLink, pool: str) -> list[str]:
    try:
        return [each.kind for each in link(lambda it: it.pool(pool)).agents if each.is_present]
    except Refused:  # no pool yet
        return []


def _kind_of(link: CoordinatorLink, again: int) -> str:
    return link(lambda it: it.trial(again, 1)).kind


def _compare(link: CoordinatorLink, trial: wire.TrialView, again: int) -> list[Compared]:
    results = [
        link(lambda it, key=key: it.trial_results(*key)).results  # type: ignore[misc]
        for key in ((trial.experiment, trial.trial), (again, 1))
    ]
    saved = [
        [each for each in experiments.all_checkpoints(link, experiment) if each.trial == number]
        for experiment, number in ((trial.experiment, trial.trial), (again, 1))
    ]
    return compare(*results, *saved)


def _tell(options: VerifyTrialOptions, view: wire.ExperimentView, rows: Sequence[Compared]) -> int:
    different = first_difference(rows)
    is_equal = different is None and view.state == COMPLETED
    if options.json:
        told = [{**asdict(row), "is_equal": row.is_equal} for row in rows]
        print_json({"experiment": view.experiment, "state": view.state, "is_equal": is_equal, "compared": told})
        return 0 if is_equal else 1
    print_rows(_COLUMNS, [_row(each) for each in rows], nothing="nothing was trained")
    if view.state != COMPLETED:
        say(f"the trial could not be trained again: experiment {view.experiment} is {view.state}: {view.reason}")
    elif different is not None:
        where = f"{different.what} at {different.length}"
        kept, again = (text or "nothing" for text in (different.kept, different.again))
        say(f"first difference at the {where}: was {kept}, now {again}")
    else:
        click.echo(f"equal: all {sum(row.is_equal is True for row in rows)} compared")
    return 0 if is_equal else 1


def _row(each: Compared) -> tuple[object, ...]:
    texts = ((text or "")[:_SHOWN] for text in (each.kept, each.again))
    return each.length, each.what, *texts, _EQUAL[each.is_equal]


COMMANDS = {"verify": verify}
