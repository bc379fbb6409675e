"""Arguments with hyperparameters in them."""

from __future__ import annotations

import pytest

from everstep.errors import UsageError
from everstep.job_file.arg_templates import check, fill

HPARAMS = {"lr": 0.1, "name": "a b", "deep": {"width": 64, "is_on": True}, "layers": [1, 2]}


@pytest.mark.parametrize(
    ("arg", "filled"),
    [
        ("--lr", "--lr"),
        ("{lr}", "0.1"),
        ("--lr={lr}", "--lr=0.1"),
        ("{name}", "a b"),
        ("{deep.width}-{deep.is_on}", "64-true"),
        ("{layers}", "[1, 2]"),
        ("{{lr}}", "{lr}"),
        ("{{{lr}}}", "{0.1}"),
    ],
)
def test_names_become_values_and_double_braces_braces(arg: str, filled: str) -> None:
    assert fill([arg], HPARAMS) == (filled,)


@pytest.mark.parametrize(
    ("arg", "code"),
    [
        ("{momentum}", "argument-hyperparameter-unknown"),
        ("{deep.depth}", "argument-hyperparameter-unknown"),
        ("{lr.deep}", "argument-hyperparameter-unknown"),
        ("{}", "argument-hyperparameter-unknown"),
        ("{lr", "argument-brace-unmatched"),
        ("lr}", "argument-brace-unmatched"),
    ],
)
def test_what_is_not_a_hyperparameter_is_refused(arg: str, code: str) -> None:
    with pytest.raises(UsageError) as refusal:
        fill([arg], HPARAMS)
    assert refusal.value.code == code


def test_a_name_without_a_hyperparameter_is_found_before_anything_starts() -> None:
    check(["--lr", "{lr}", "{{x}}", "{deep.width}"], HPARAMS)
    with pytest.raises(UsageError, match="names the hyperparameter 'rate'.*\n.*there are lr, name, deep, layers"):
        check(["--lr", "{rate}"], HPARAMS)
    with pytest.raises(UsageError, match="has a single }"):
        check(["lr}"], HPARAMS)
