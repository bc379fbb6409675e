"""Arguments are shown without the secrets that people type into them, and otherwise as they are."""

from __future__ import annotations

import pytest

from everstep.job_file.order import NodeOrder
from everstep.jobs.leave_record import configuration_of
from everstep.record.argument_masks import masked_arguments, masked_line, secret_values


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
        (["--secret-key", "abc", "--client-secret-key", "abc"], ["--secret-key", "***", "--client-secret-key", "***"]),
        (["--aws-secret-access-key", "abc"], ["--aws-secret-access-key", "***"]),
        (["--secret-access-key=abc"], ["--secret-access-key=***"]),
        (["AWS_SECRET_ACCESS_KEY=abc"], ["AWS_SECRET_ACCESS_KEY=***"]),
        (["PGPASSWORD=abc", "MYSQL_PWD=abc", "PWD=/home"], ["PGPASSWORD=***", "MYSQL_PWD=***", "PWD=/home"]),
        (["GITHUB_TOKEN=abc", "pad_token=<pad>"], ["GITHUB_TOKEN=***", "pad_token=<pad>"]),
        (["https://ghp_abc@host/x", "ssh://git@host/x"], ["https://***@host/x", "ssh://git@host/x"]),
        (["s3://u:p@ss@host/x", "https://host/?to=a@b"], ["s3://u:***@host/x", "https://host/?to=a@b"]),
        (["-c", "hub login --token abc && train"], ["-c", "hub login --token *** && train"]),
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


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("export WANDB_API_KEY=abc", "export WANDB_API_KEY=***"),
        ("hub login  --token 'a b' --add", "hub login  --token *** --add"),
        ('bash -c "export HF_TOKEN=abc && pip install x"', 'bash -c "export HF_TOKEN=*** && pip install x"'),
        ("pip install git+https://u:p@host/x", "pip install git+https://u:***@host/x"),
        ("module load cuda/12; echo it's on", "module load cuda/12; echo it's on"),
    ],
)
def test_a_line_of_a_shell_is_masked_word_by_word(given, shown):
    assert masked_line(given) == shown


def test_a_job_tells_its_order_without_the_secrets_in_it():
    order = NodeOrder(
        job="job",
        name="",
        script="train.py",
        setup=("export WANDB_API_KEY=hunter2", "hub login --token hunter2"),
        code_from="s3://u:hunter2@host/code",
        record_to="https://hunter2@host/record",
        experiment={"password": "hunter2", "inner": {"api_key": ["hunter2"]}, "lr": 0.1, "pad_token": "<pad>"},
    )
    shown = configuration_of(order)
    assert "hunter2" not in str(shown)
    assert shown["setup"] == ["export WANDB_API_KEY=***", "hub login --token ***"]
    assert shown["experiment"] == {"password": "***", "inner": {"api_key": "***"}, "lr": 0.1, "pad_token": "<pad>"}
