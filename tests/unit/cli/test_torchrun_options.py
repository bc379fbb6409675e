"""torchrun's options as values."""

from __future__ import annotations

import signal

import pytest

from everstep.errors import UsageError
from everstep.launcher.shown_streams import BOTH, STDERR, ShownStreams
from everstep.launcher.torchrun_options import (
    Endpoint,
    NodesRange,
    Rendezvous,
    notes_on,
    parse_endpoint,
    parse_nodes,
    parse_num_workers,
    parse_ranks,
    parse_rendezvous,
    parse_signals,
    parse_streams,
    parse_texts,
)


def test_nodes() -> None:
    assert parse_nodes("2") == NodesRange(min=2, max=2)
    assert parse_nodes("1:4") == NodesRange(min=1, max=4)
    assert not parse_nodes("").is_limit


@pytest.mark.parametrize("wrong", ["0", "4:1", "0:2", "-1", "1:2:3", "two", "1.5"])
def test_a_number_of_nodes_that_makes_no_sense_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="--nnodes"):
        parse_nodes(wrong)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("node0", "node0", 29400),
        ("node0:0", "node0", 0),
        (" 10.0.0.5:1234 ", "10.0.0.5", 1234),
        ("[fe80::1]", "fe80::1", 29400),
        ("[::1]:80", "::1", 80),
    ],
)
def test_endpoints(text: str, host: str, port: int) -> None:
    assert parse_endpoint(text) == Endpoint(host=host, port=port)


@pytest.mark.parametrize("wrong", ["", ":29400", "a:b", "a:99999", "::1", "a b:1", "http://a:1"])
def test_an_endpoint_that_makes_no_sense_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="--rdzv-endpoint") as raised:
        parse_endpoint(wrong)
    assert raised.value.hint


def test_an_endpoint_with_tls_is_a_coordinator_that_stands_there() -> None:
    endpoint = parse_endpoint("https://node0:7070")
    assert endpoint == Endpoint(host="node0", port=7070, is_tls=True)
    assert endpoint.url == "https://node0:7070"
    assert not endpoint.may_host(None)
    with pytest.raises(UsageError, match="cannot host a coordinator with TLS"):
        endpoint.may_host(True)


def test_an_endpoint_reads_as_it_was_written() -> None:
    assert str(parse_endpoint("[::1]:80")) == "[::1]:80"
    assert str(parse_endpoint("a")) == "a:29400"


# --- rendezvous ---


def test_without_options_the_node_is_alone() -> None:
    assert parse_rendezvous() == Rendezvous()


def test_c10d() -> None:
    met = parse_rendezvous(backend="c10d", endpoint="node0", rdzv_id="100", conf="join_timeout=60, last_call_timeout=5")
    assert met == Rendezvous(endpoint=Endpoint(host="node0", port=29400), rdzv_id="100", join_s=60.0, last_call_s=5.0)


def test_numbered_nodes_meet_at_the_master() -> None:
    met = parse_rendezvous(master_addr="10.0.0.1", master_port=1234, node_rank=1)
    assert (met.endpoint, met.node_rank, met.is_host) == (Endpoint(host="10.0.0.1", port=1234), 1, False)
    assert parse_rendezvous(master_port=0, node_rank=0).endpoint == Endpoint(host="127.0.0.1", port=0)
    met = parse_rendezvous(master_addr="[::1]", node_rank=0)
    assert (met.endpoint, met.is_host) == (Endpoint(host="::1", port=29500), True)


def test_standalone_ignores_what_is_said_of_a_rendezvous() -> None:
    met = parse_rendezvous(
        is_standalone=True, backend="c10d", endpoint="node0", rdzv_id="7", master_addr="x", conf="is_host=1"
    )
    assert met == Rendezvous()


def test_what_changes_nothing_is_told() -> None:
    met = parse_rendezvous(backend="c10d", endpoint="a", master_port=1, conf="read_timeout=60,foo=1,is_host=True")
    assert met.is_host is True
    assert met.notes == (
        "--rdzv-conf: read_timeout, foo changes nothing here",
        "--master-addr and --master-port change nothing with --rdzv-backend=c10d",
    )


def test_timeout_is_a_join_timeout_unless_that_is_given() -> None:
    assert parse_rendezvous(conf="timeout=9").join_s == 9.0
    assert parse_rendezvous(conf="timeout=9,join_timeout=3").join_s == 3.0


@pytest.mark.parametrize("conf", ["a", "a=", "=1", "join_timeout=soon", "join_timeout=-1", "is_host=maybe"])
def test_settings_that_make_no_sense_are_refused(conf: str) -> None:
    with pytest.raises(UsageError, match="--rdzv-conf"):
        parse_rendezvous(conf=conf)


def test_other_services_are_refused_with_a_way_out() -> None:
    with pytest.raises(UsageError, match="no other service is needed") as raised:
        parse_rendezvous(backend="etcd-v2")
    assert "--rdzv-endpoint" in str(raised.value.hint)
    with pytest.raises(UsageError, match="--node-rank"):
        parse_rendezvous(node_rank=-1)


def test_an_id_of_none_is_none() -> None:
    assert parse_rendezvous(rdzv_id="none").rdzv_id is None


# --- workers ---


def test_num_workers() -> None:
    assert parse_num_workers("3", num_gpus=0, num_cpus=2) == 3
    assert parse_num_workers("cpu", num_gpus=4, num_cpus=2) == 2
    assert parse_num_workers("gpu", num_gpus=4, num_cpus=2) == 4
    assert parse_num_workers("auto", num_gpus=4, num_cpus=2) == 4
    assert parse_num_workers("auto", num_gpus=0, num_cpus=2) == 2


def test_gpus_that_are_not_there_are_refused() -> None:
    with pytest.raises(UsageError, match="there is no GPU here"):
        parse_num_workers("gpu", num_gpus=0, num_cpus=2)


@pytest.mark.parametrize("wrong", ["0", "-1", "many", "", "xpu", "²"])
def test_a_number_of_workers_that_makes_no_sense_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="is not a number of workers"):
        parse_num_workers(wrong, num_gpus=0, num_cpus=2)


def test_signals() -> None:
    assert parse_signals("SIGTERM, USR1,SIGTERM") == (signal.SIGTERM, signal.SIGUSR1)
    for wrong in ("SIGKILL", "SIGNOTHING", "STOP", "sigterm", "SIG_IGN"):
        with pytest.raises(UsageError, match="not a signal that can be handled"):
            parse_signals(wrong)


# --- logs ---


def test_streams() -> None:
    assert parse_streams("2", option="--tee") == ShownStreams(of_all=STDERR)
    assert parse_streams("0:3,12:2", option="--tee") == ShownStreams(by_rank={0: BOTH, 12: STDERR})
    for wrong in ("4", "", "0:4", "a:1", "0:1,", "3,1"):
        with pytest.raises(UsageError, match="--tee"):
            parse_streams(wrong, option="--tee")


def test_ranks() -> None:
    assert parse_ranks("") is None
    assert parse_ranks("0, 2") == {0, 2}
    with pytest.raises(UsageError, match="not a list of ranks"):
        parse_ranks("0,x")


def test_texts() -> None:
    assert parse_texts("apple,a,,b") == ("apple", "a,b")
    assert parse_texts("") == ()


# --- those that change nothing ---


def test_notes() -> None:
    assert notes_on() == ()
    assert notes_on(event_log_handler="null") == ()
    assert notes_on(monitor_interval=0.0) == ("--monitor-interval changes nothing: ends are seen at once",)
    everything = notes_on(
        monitor_interval=5.0, start_method="fork", event_log_handler="console", is_run_path=True, numa_binding="node"
    )
    assert len(everything) == 5


def test_values_that_torchrun_would_not_take_are_refused() -> None:
    for option in ({"start_method": "teleport"}, {"numa_binding": "moon"}, {"logs_specs": "mine"}):
        with pytest.raises(UsageError) as raised:
            notes_on(**option)  # type: ignore[arg-type]
        assert raised.value.hint
