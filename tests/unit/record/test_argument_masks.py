"""Arguments are shown without the secrets that people type into them, and otherwise as they are."""

from __future__ import annotations

import pytest

from everstep.record.argument_masks import masked_arguments, secret_values


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--api-key", "abc", "--epochs", "3"], ["--api-key", "***", "--epochs", "3"]),
        (["--api_key=abc=="], ["--api_key=***"]),
        (["--password", "-x1"], ["--password", "***"]),
        (["--secret", "--epochs", "3"], ["--secret", "--epochs", "3"]),  # a switch
        (["logger.hf_token=abc", "WANDB_API_KEY=abc"], ["logger.hf_token=***", "WANDB_API_KEY=***"]),
        (["--data=s3://me:hunter2@host/x?y"], ["--data=s3://me:***@host/x?y"]),
        (["postgresql://me:pa:ss@host/db"], ["postgresql://me:***@host/db"]),
        (["--url=https://host:8080/x", "git@host:x"], ["--url=https://host:8080/x", "git@host:x"]),
        (["--tokenizer", "bert", "--max-tokens=512"], ["--tokenizer", "bert", "--max-tokens=512"]),
        (["--pad-token", "<pad>", "--key", "loss"], ["--pad-token", "<pad>", "--key", "loss"]),
        (["--token", "hf_abc"], ["--token", "***"]),
        (["train.py", "--lr=0.1"], ["train.py", "--lr=0.1"]),
    ],
)
def test_what_an_option_or_a_url_calls_secret_is_masked(given, shown):
    assert masked_arguments(given, ()) == shown


def test_values_of_telling_variables_are_masked_wherever_they_are():
    environment = {"WANDB_API_KEY": "0123456789", "GITHUB_TOKEN": "true", "TOKENIZERS_PARALLELISM": "something"}
    values = secret_values(environment)
    assert values == ["0123456789"]
    assert masked_arguments(["-c", "login('0123456789')", "true", "something"], values) == [
        "-c", "login('***')", "true", "something",
    ]  # fmt: skip
