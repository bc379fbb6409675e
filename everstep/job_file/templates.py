"""Templates: pieces of experiment files that the coordinator keeps, to go below a file's own keys. Pure."""

from __future__ import annotations

from typing import Any

from everstep.errors import UsageError
from everstep.job_file.experiment import without_secrets
from everstep.job_file.tree import parse_mapping

SHORTEST = "the shortest template is: `max_restarts: 2`"


def read_template(text: str, *, name: str) -> dict[str, Any]:
    """What it sets. Refused if it has values of secrets: everyone with a token can read a template."""
    tree = parse_mapping(text, name=name, shortest=SHORTEST)
    if without_secrets(tree) != tree:
        raise UsageError(
            f"{name}: the template contains secrets, and everyone with a token can read templates",
            hint="name the variable instead, such as secrets: {KEY: env:KEY}",
            code="template-has-secrets",
        )
    plain: dict[str, Any] = tree.plain()
    return plain
