"""`everstep webhook …`: create, list, test and delete webhooks, and show their deliveries."""

from __future__ import annotations

import sys
import uuid
from dataclasses import asdict, dataclass

import click

from everstep import wire
from everstep.cli.experiment_link import ExperimentsOptions, link_of
from everstep.cli.experiment_show import print_rows, shown_time
from everstep.cli.options import command
from everstep.cli.printable import printable, printable_lines
from everstep.cli.tables import print_json
from everstep.errors import UsageError
from everstep.settings import setting
from everstep.wire.webhooks import DEFAULT_KIND, TRIGGERS, USUAL_TRIGGERS, WEBHOOK_KINDS

_LIST = ("id", "name", "kind", "address", "calls on", "for", "waiting", "given up")
_LIST_GIVE_WAY = ("kind", "address")
_DELIVERIES = ("created", "state", "attempts", "next", "event", "reason", "delivery")
_DELIVERIES_GIVE_WAY = ("delivery", "next")


@dataclass(frozen=True, kw_only=True)
class WebhooksOptions(ExperimentsOptions):
    json: bool = setting(False, "Print JSON instead of text")


@dataclass(frozen=True, kw_only=True)
class WebhookOptions(WebhooksOptions):
    webhook: int = setting(..., "The webhook's number", is_argument=True, metavar="ID", least=1)


@dataclass(frozen=True, kw_only=True)
class CreateWebhookOptions(WebhooksOptions):
    name: str = setting(..., "A name for it, which experiment files can use", is_argument=True, metavar="NAME")
    url: str = setting(
        ..., "The URL to call; - reads it from stdin, so that others do not see it", is_argument=True, metavar="URL"
    )
    kind: str = setting(DEFAULT_KIND, f"Form of the message: {', '.join(WEBHOOK_KINDS)}", metavar="KIND")
    on: tuple[str, ...] = setting(
        (),
        f"When to call it; repeatable: {', '.join(TRIGGERS)}; default: {', '.join(USUAL_TRIGGERS)}",
        metavar="TRIGGER",
    )
    log_pattern: tuple[str, ...] = setting(
        (), "Also call it once for each trial whose log has a line that matches; repeatable", metavar="REGEX"
    )
    experiment: int = setting(0, "Only for this experiment; default: all of yours", metavar="ID", least=0)
    everyone: bool = setting(False, "For the experiments of all people (administrators only)")
    on_request: bool = setting(False, "Only for experiments whose file names it in `webhooks`")


@dataclass(frozen=True, kw_only=True)
class DeliveriesOptions(WebhookOptions):
    limit: int = setting(100, "Show at most this many, newest first", metavar="N", least=1, most=1000)


@click.group(no_args_is_help=True)
def webhook() -> None:
    """Tell other systems when experiments or trials end, fail or pause, print something, or call everstep.alert."""


@command(CreateWebhookOptions, name="create", no_args_is_help=True)
def create(options: CreateWebhookOptions) -> None:
    """Create a webhook, and print the secret that signs what is sent to it. The secret is shown only here.

    The coordinator calls only hosts that its administrator allows: everstep serve --webhook-hosts."""
    new = wire.NewWebhook(
        request=uuid.uuid4().hex,
        name=options.name,
        url=sys.stdin.readline().strip() if options.url == "-" else options.url,
        kind=_one_of("--kind", options.kind, WEBHOOK_KINDS),
        triggers=[_one_of("--on", each, TRIGGERS) for each in options.on] or _usual(options),
        log_patterns=list(options.log_pattern),
        experiment=options.experiment,
        is_for_everyone=options.everyone,
        is_on_request=options.on_request,
    )
    for problem in new.problems():
        raise UsageError(problem, hint="see everstep webhook create --help", code="webhook-invalid")
    with link_of(options) as link:
        created = link(lambda coordinator: coordinator.create_webhook(new))
    if options.json:
        print_json({**asdict(created.webhook), "secret": created.secret})
        return
    click.echo(printable(f"Created webhook {created.webhook.webhook} ({created.webhook.name})"))
    click.echo(f"secret: {created.secret}")
    click.echo("Keep the secret where the receiver can read it; it is not shown again.")


def _one_of(option: str, given: str, known: tuple[str, ...]) -> str:
    if given not in known:
        raise click.UsageError(f"{option}: {given!r} is not one of {', '.join(known)}")
    return given


def _usual(options: CreateWebhookOptions) -> list[str]:
    """With a pattern alone, nothing else."""
    return [] if options.log_pattern else list(USUAL_TRIGGERS)


@command(WebhooksOptions, name="list")
def list_webhooks(options: WebhooksOptions) -> None:
    """List the webhooks that you may change."""
    with link_of(options) as link:
        found = link(lambda coordinator: coordinator.webhooks())
    if options.json:
        print_json(asdict(found))
        return
    hosts = ", ".join(found.hosts) or "none; everstep serve --webhook-hosts allows some"
    rows = [_row(each) for each in found.webhooks]
    print_rows(_LIST, rows, _LIST_GIVE_WAY, nothing="no webhooks")
    click.echo(printable(f"allowed hosts: {hosts}"))


def _row(view: wire.WebhookView) -> tuple[object, ...]:
    on = [*view.triggers, *(f"log: {each}" for each in view.log_patterns)]
    return (
        view.webhook,
        view.name,
        view.kind,
        view.address,
        ", ".join(on),
        _for(view),
        view.num_waiting,
        view.num_given_up,
    )


def _for(view: wire.WebhookView) -> str:
    if view.experiment:
        return f"experiment {view.experiment}"
    whose = "everyone" if view.is_for_everyone else view.owner or "experiments without an owner"
    return f"{whose}, on request" if view.is_on_request else whose


@command(WebhookOptions, name="test", no_args_is_help=True)
def test(options: WebhookOptions) -> int:
    """Send a test at once, and print the answer. Exit code 1: it was not accepted."""
    with link_of(options) as link:
        answer = link(lambda coordinator: coordinator.test_webhook(options.webhook))
    if options.json:
        print_json(asdict(answer))
    else:
        state = "delivered" if answer.is_delivered else "not delivered"
        click.echo(printable_lines(f"{state} in {answer.took_s:.2f} s: {answer.reason}"))
        click.echo(f"delivery: {answer.delivery}")
    return 0 if answer.is_delivered else 1


@command(WebhookOptions, name="delete", no_args_is_help=True)
def delete(options: WebhookOptions) -> None:
    """Delete a webhook. What still waits to be sent to it is not sent."""
    with link_of(options) as link:
        link(lambda coordinator: coordinator.delete_webhook(options.webhook))
    if options.json:
        print_json({"webhook": options.webhook})
    else:
        click.echo(f"Deleted webhook {options.webhook}")


@command(DeliveriesOptions, name="deliveries", no_args_is_help=True)
def deliveries(options: DeliveriesOptions) -> None:
    """Show what was sent to a webhook, newest first, and what went wrong."""
    with link_of(options) as link:
        found = link(lambda coordinator: coordinator.deliveries(options.webhook, limit=options.limit))
    if options.json:
        print_json(asdict(found))
        return
    rows = [
        (
            shown_time(each.created_at),
            each.state,
            each.num_attempts,
            shown_time(each.next_at) if each.ended_at is None else "",
            each.event,
            each.reason,
            each.delivery,
        )
        for each in found.deliveries
    ]
    title = f"newest {len(rows)} of {found.num_found} deliveries" if len(rows) < found.num_found else None
    print_rows(_DELIVERIES, rows, _DELIVERIES_GIVE_WAY, title=title, nothing="no deliveries")


for each in (create, list_webhooks, test, delete, deliveries):
    webhook.add_command(each)
COMMANDS = {"webhook": webhook}
