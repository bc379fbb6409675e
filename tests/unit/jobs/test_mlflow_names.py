"""Names and URLs on their way to MLflow."""

from __future__ import annotations

import pytest

from everstep.jobs.mlflow_export import _told, metric_key, without_password


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("validation/loss", "validation/loss"),
        ("at@odd: 5%", "at_odd_ 5_"),
        ("/absolute", "absolute"),
        ("a//b/./c", "a/b/c"),
        ("../up", "_"),
        ("", "_"),
        ("x" * 300, "x" * 250),
    ],
)
def test_a_series_gets_a_name_that_mlflow_takes(name: str, key: str) -> None:
    assert metric_key(name) == key


def test_two_series_never_share_a_name() -> None:
    taken = [metric_key("a@b")]
    taken.append(metric_key("a_b", taken))
    taken.append(metric_key("a%b", taken))
    assert taken == ["a_b", "a_b_2", "a_b_3"]


def test_passwords_of_a_url_are_never_told() -> None:
    uri = "http://me:secret@host:5000/x"
    assert without_password(uri) == "http://host:5000/x"
    assert without_password("sqlite:///mlflow.db") == "sqlite:///mlflow.db"
    assert _told(ValueError(f"{uri}/api failed\nmore"), uri) == "http://host:5000/x/api failed"
