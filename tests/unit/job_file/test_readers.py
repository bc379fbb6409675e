"""Files and commands of other systems, ours of their shape and those that their guides print, become jobs; what has no
place is said."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from everstep.errors import UsageError
from everstep.job_file.load import Loaded, load, load_command, load_file, to_yaml
from everstep.job_file.order import num_workers_of
from lab.seeds import snippet

FILES = Path(__file__).parent / "files"
COMMAND = (FILES / "elasticdl.sh").read_text()


def elasticdl(*more: str, without: str = "nothing", line: str = COMMAND) -> Loaded:
    words = [word for word in shlex.split(line.replace("\\\n", " ")) if not word.startswith(f"--{without}=")]
    return load_command([*words, *more])


def refusal(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        load(text, name="their.yaml")
    return str(caught.value)


@pytest.mark.parametrize("name", ["ads.yaml", "determined.yaml", "dlrover.yaml"])
def test_what_is_converted_reads_back_as_the_same_job(name: str) -> None:
    job = load_file(FILES / name).job
    again = load(to_yaml(job))
    assert (again.job, again.system, again.notes) == (job, "Everstep", ())


# --- ADS ---


def test_the_guide_of_ads() -> None:
    loaded = load(snippet(2, "kind: distributed"))
    job, oci = loaded.job, loaded.job.platform.oci
    assert (loaded.system, loaded.notes) == ("ADS", ())
    assert (job.name, job.entry.script, str(job.nodes)) == ("my_distributed_training", "train.py", "3")
    assert job.args[-2:] == ("--timeout", "5")
    assert job.env == {"NCCL_ASYNC_ERROR_HANDLING": "1"}
    assert job.image == "<region.ocir.io/my-tenancy/image-name>"
    assert oci is not None and job.platform.chosen == "oci"
    assert (oci.shape, oci.block_storage_gb, oci.project) == ("VM.GPU2.1", 50, "oci.xxxx.<project_ocid>")
    assert (oci.work_dir, oci.main_name) == ("oci://my-bucket@my-namespace/path/to/dir/", "PyTorch-Distributed-main")


def ads(old: str, new: str) -> str:
    text = (FILES / "ads.yaml").read_text()
    assert old in text
    return text.replace(old, new)


def test_ads_starts_a_worker_for_each_gpu_of_a_shape() -> None:
    for shape, num_gpus in (("VM.GPU3.1", 1), ("BM.GPU.A10.4", 4), ("BM.GPU.H100.8", 8), ("VM.Standard2.4", 1)):
        assert num_workers_of(load(ads("VM.GPU3.1", shape)).job) == num_gpus


def test_the_environment_of_adss_runtime_goes_first() -> None:
    job = load(ads("      args:", "      env: [{name: OMP_NUM_THREADS, value: 4}]\n      args:")).job
    assert job.env == {"OMP_NUM_THREADS": "4"}


def test_what_ads_has_and_we_have_not_is_said() -> None:
    text = ads("blockStorageSize: 80", "blockStorageSize: 80\n      storageMount: [{src: a, dest: b}]")
    text = text.replace("      config:", "      ephemeral: true\n      config:").replace(
        "phx.ocir.io/garden/flowers:3", "'@image'"
    )
    told = "\n".join(load(text).notes)
    assert "spec.infrastructure.spec.storageMount (line 17) was not carried over" in told
    assert "spec.cluster.spec.ephemeral" in told
    assert "means the registry and tag of config.ini" in told


def test_other_clusters_of_ads_are_refused() -> None:
    assert "their.yaml:20: a cluster of kind DASK" in refusal(ads("kind: PYTORCH", "kind: DASK"))
    assert "parameter servers" in refusal(ads("      main:\n", "      ps: {replicas: 1}\n      main:\n"))
    assert "entryPoint is missing" in refusal(ads("entryPoint", "entry"))
    assert "is not a whole number" in refusal(ads("replicas: 2", "replicas: two"))


# --- Determined ---


def test_the_guide_of_determined() -> None:
    loaded = load(snippet(4, "slots_per_trial"))
    job = loaded.job
    assert (loaded.system, job.name, job.entrypoint) == ("Determined", "my_pytorch_trainer_trial", ("train.py",))
    assert (job.nodes.max, job.workers_per_node, job.hyperparameters) == (1, 8, {"global_batch_size": 32})
    assert job.searcher is not None
    assert (job.searcher.name, job.searcher.metric, job.searcher.max_length) == (
        "single",
        "validation_loss",
        {"batches": 937},
    )
    workers, gpus = loaded.notes
    assert "8 became 8 workers on one node" in workers
    assert "8 asks for 8 GPUs" in gpus and "--set resources.gpu=0" in gpus


@pytest.mark.parametrize(
    ("more", "num_gpus"),
    [
        ("", 2),
        ("slurm: {slot_type: cuda}", 2),
        ("slurm: {slot_type: cpu}", 0),
        ("pbs: {slot_type: cpu}", 0),
        ("environment: {image: {cpu: img:cpu}}", 0),
        ("environment: {image: {cpu: img:cpu, cuda: img:gpu}}", 2),
    ],
)
def test_slots_of_determined_ask_for_gpus_unless_they_are_cpus(more: str, num_gpus: int) -> None:
    job = load(f"entrypoint: python3 train.py\nresources: {{slots_per_trial: 2}}\n{more}").job
    assert (job.resources.gpu, num_workers_of(job)) == (num_gpus, 2)


@pytest.mark.parametrize(
    ("given", "num_bytes"),
    [("1.5 gb", 3 * 2**29), ("1219021 b", 1219021), ("2Gi", 2**31), ("4G", 2**32), ("4g", 2**32), ("4GB", 2**32)],
)
def test_sizes_of_determined_are_powers_of_1024_in_any_case(given: str, num_bytes: int) -> None:
    job = load(f"entrypoint: train:Trial\nmax_restarts: 1\nsearcher: single\nresources: {{shm_size: {given}}}").job
    assert job.resources.shm == num_bytes


DETERMINED = """
name: full
description: a long one
workspace: team
labels: [vision]
entrypoint: python3 -m determined.launch.torch_distributed -- python3 -m pkg.train --lr 0.10
resources: {slots_per_trial: 2, shm_size: 2Gi, is_single_node: true, resource_pool: gpu}
searcher: {name: adaptive_asha, metric: loss, max_trials: 16, time_metric: batches, max_time: 100, stop_once: true}
hyperparameters: {lr: {type: log, minval: -4, maxval: -1, base: 10}}
max_restarts: 0
reproducibility: {experiment_seed: 7}
checkpoint_storage: {type: s3, bucket: b, prefix: /p/, save_trial_best: 0, secret_key: hunter2}
bind_mounts: [{host_path: /mnt, container_path: /data, read_only: true}, {host_path: /x, container_path: x}]
environment:
  image: {cuda: img:gpu, cpu: img:cpu}
  environment_variables: [A=1, B=x=y, C]
  registry_auth: {username: me, password: hunter2}
  pod_spec: {spec: {hostNetwork: true}}
slurm: {sbatch_args: [--exclude=n7]}
"""


def test_all_of_determined_that_has_a_place_is_carried_over() -> None:
    job = load(DETERMINED).job
    assert (job.entrypoint, job.args, job.restarts, job.seed) == (("-m", "pkg.train"), ("--lr", "0.10"), 0, 7)
    assert (job.checkpoint.uri, job.checkpoint.keep_best, job.checkpoint.keep_latest) == ("s3://b/p", 0, None)
    assert [(each.source, each.target, each.readonly) for each in job.volumes] == [
        ("/mnt", "/data", True),
        ("/x", "/run/determined/workdir/x", False),
    ]
    assert (job.image, job.env, job.labels, job.resources.shm) == (
        "img:gpu",
        {"A": "1", "B": "x=y"},
        {"vision": ""},
        2**31,
    )
    assert job.platform.kubernetes is not None and job.platform.kubernetes.raw == {"spec": {"hostNetwork": True}}
    assert job.platform.slurm is not None and job.platform.slurm.raw == ("--exclude=n7",)
    assert job.description == "a long one"
    assert job.searcher is not None and job.searcher.stop_once is True
    assert load(to_yaml(job)).job == job


def test_a_class_of_determined_is_trained_by_the_harness() -> None:
    job = load("entrypoint: model_def:MyTrial\nresources: {slots_per_trial: 2}\nsearcher: {name: custom}").job
    assert (job.entrypoint, job.args, job.title) == (
        ("-m", "everstep.pytorch.harness"),
        ("model_def:MyTrial",),
        "MyTrial",
    )
    assert job.entry == load("entrypoint: model_def:MyTrial").job.entry


def test_keys_of_ours_may_stand_beside_those_of_determined() -> None:
    text = DETERMINED + "reuse: true\ndata: {version: 2}\nargs: [--more, 1.50]\nenv: {B: y, D: 0.10}\nrestarts: 9\n"
    loaded = load(text)
    assert loaded.system == "Determined"
    assert (loaded.job.reuse, loaded.job.args) == (True, ("--lr", "0.10", "--more", "1.50"))
    assert loaded.job.env == {"A": "1", "B": "y", "D": "0.10"}
    assert loaded.job.restarts == 0 and any("restarts" in note for note in loaded.notes)


def test_all_of_determined_that_has_none_is_said_and_no_password_shown() -> None:
    told = "\n".join(load(DETERMINED).notes)
    for part in ("workspace", "resources.resource_pool", "registry_auth"):
        assert part in told
    assert "used the value for cuda, not for cpu" in told
    assert "environment variable C" in told
    assert "checkpoint_storage.secret_key (line 12) was not carried over" in told
    assert "hunter2" not in told


@pytest.mark.parametrize(
    ("entrypoint", "told"),
    [
        ("python3 -m determined.launch.horovod python3 train.py", "starts workers its own way"),
        ("if x; then torchrun train.py; fi", "torchrun cannot be removed from a longer script"),
        ("torchrun --nnodes 2", "starts nothing"),
    ],
)
def test_entrypoints_of_determined_that_mean_nothing_here_are_refused(entrypoint: str, told: str) -> None:
    assert told in refusal(f"entrypoint: {entrypoint}\nresources: {{slots_per_trial: 2}}")


@pytest.mark.parametrize(
    ("line", "setup", "entrypoint", "args"),
    [
        ("python3 train.py --x 'a b'", (), ("train.py",), ("--x", "a b")),
        ("cd src && A=1 torchrun train.py 5", ("cd src", "export A=1"), ("train.py",), ("5",)),
        ('python train.py --msg "a && b"', (), ("train.py",), ("--msg", "a && b")),
        ("torchrun train.py --d $DIR 'x y'", (), ("bash", "-c", "exec python -u train.py --d $DIR 'x y'"), ()),
        ("torchrun -m pkg.a $X", (), ("bash", "-c", "exec python -u -m pkg.a $X"), ()),
        ("python -m pkg.a $X", (), ("bash", "-c", "exec python -u -m pkg.a $X"), ()),
        ("./run.sh | tee log", (), ("bash", "-c", "./run.sh | tee log"), ()),
        ("for i in 1 2; do ./x $i; done", (), ("bash", "-c", "for i in 1 2; do ./x $i; done"), ()),
    ],
)
def test_a_line_for_a_shell_is_taken_apart_as_far_as_that_is_safe(
    line: str, setup: tuple[str, ...], entrypoint: tuple[str, ...], args: tuple[str, ...]
) -> None:
    quoted = line.replace("'", "''")
    job = load(f"entrypoint: '{quoted}'\nresources: {{slots_per_trial: 1}}").job
    assert (job.setup, job.entrypoint, job.args) == (setup, entrypoint, args)
    assert load(to_yaml(job)).job == job


# --- DLRover ---


def test_the_guide_of_dlrover() -> None:
    loaded = load(snippet(0, "replicaSpecs"))
    job = loaded.job
    assert (loaded.system, loaded.notes) == ("DLRover", ())
    assert (job.entrypoint, str(job.nodes), job.workers_per_node, job.restarts) == (
        ("model_zoo/pytorch/mnist_cnn.py",),
        "1:2",
        1,
        3,
    )
    assert job.args == (
        *("--training_data", "/data/mnist_png/training/elastic_ds.txt"),
        *("--validation_data", "/data/mnist_png/testing/elastic_ds.txt"),
    )
    assert job.platform.chosen == "kubernetes"
    assert job.platform.kubernetes is not None and job.platform.kubernetes.pull_policy == "Always"


ELASTICJOB = """
apiVersion: elastic.iml.github.io/v1alpha1
kind: ElasticJob
metadata: {name: mnist, namespace: team, labels: {a: b}, annotations: {x: y}}
spec:
  distributionStrategy: AllreduceStrategy
  optimizeMode: single-job
  replicaSpecs:
    dlrover-master:
      replicas: 1
      template: {spec: {containers: [{name: main, image: m, resources: {requests: {cpu: 1, memory: 2Gi}}}]}}
    worker:
      replicas: 4
      restartCount: 3
      template:
        metadata: {annotations: {note: here}}
        spec:
          restartPolicy: OnFailure
          nodeSelector: {zone: a}
          tolerations: [{key: gpu, operator: Exists}]
          imagePullSecrets: [{name: reg}]
          terminationGracePeriodSeconds: 90
          containers:
            - name: side
              image: side:1
            - name: main
              image: img
              command: [dlrover-run, --nnodes=$(NODE_NUM), --nproc_per_node, "8", --network-check, --node_unit=2]
              args: [--rdzv-conf, "join_timeout=60,pend_timeout=9", train.py, "a b"]
              env:
                - {name: A, value: "1"}
                - {name: TOKEN, valueFrom: {secretKeyRef: {name: team, key: token}}}
                - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
              resources:
                requests: {cpu: 500m, memory: 1Gi}
                limits: {cpu: 4, memory: 2Gi, nvidia.com/gpu: 8, rdma/hca: 1}
              volumeMounts:
                - {name: shm, mountPath: /dev/shm}
                - {name: data, mountPath: /data, readOnly: true}
                - {name: conf, mountPath: /conf}
                - {name: claim, mountPath: /claim, subPath: x}
          volumes:
            - {name: shm, emptyDir: {medium: Memory, sizeLimit: 1Gi}}
            - {name: data, hostPath: {path: /mnt}}
            - {name: conf, configMap: {name: c}}
            - {name: claim, persistentVolumeClaim: {claimName: scratch}}
"""


def test_all_of_an_elasticjob_that_has_a_place_is_carried_over() -> None:
    job = load(ELASTICJOB).job
    kubernetes = job.platform.kubernetes
    assert kubernetes is not None
    assert (job.name, kubernetes.namespace, job.labels, job.image) == ("mnist", "team", {"a": "b"}, "img")
    assert (str(job.nodes), job.workers_per_node, job.health.check, job.elastic.join_s) == ("4", 8, True, 60.0)
    assert (job.entrypoint, job.args) == (("train.py",), ("a b",))
    assert (job.env, str(job.secrets["TOKEN"])) == ({"A": "1"}, "kubernetes:team/token")
    assert (job.resources.cpu, job.resources.limits.cpu, job.resources.gpu, job.resources.shm) == (0.5, 4.0, 8, 2**30)
    assert job.coordinator.resources.memory == 2**31
    assert [(each.kind, each.target) for each in job.volumes] == [("path", "/data"), ("pvc", "/claim")]
    assert kubernetes.node_selector == {"zone": "a"} and kubernetes.pull_secrets == ("reg",)
    assert kubernetes.raw == {
        "spec": {"terminationGracePeriodSeconds": 90},
        "metadata": {"annotations": {"note": "here"}},
    }
    assert load(to_yaml(job)).job == job


def test_all_of_an_elasticjob_that_has_none_is_said() -> None:
    told = "\n".join(load(ELASTICJOB).notes)
    left = ("metadata.annotations", "optimizeMode", "restartCount", "--node-unit", "pend_timeout", "restartPolicy")
    for part in (*left, "rdma/hca", "subPath", "containers.0.image", "env.2.valueFrom", "volumes.2", "volumeMounts.2"):
        assert part in told, part


def test_other_strategies_and_roles_of_dlrover_are_refused() -> None:
    text = (FILES / "dlrover.yaml").read_text()
    assert "trains by all-reduce" in refusal(text.replace("AllreduceStrategy", "ParameterServerStrategy"))
    assert "replicas of ps" in refusal(text.replace("    worker:", "    ps: {replicas: 1}\n    worker:"))
    assert "has no worker" in refusal(text.replace("    worker:", "    chief:").replace("replicas: 3", "replicas: 0"))


# --- ElasticDL ---


def test_the_command_of_elasticdls_tutorial() -> None:
    loaded = elasticdl(line=snippet(1, "elasticdl train"))
    job = loaded.job
    assert (job.name, job.entrypoint, str(job.nodes)) == (
        "test-mnist-allreduce",
        ("-m", "model_zoo.mnist.mnist_pytorch"),
        "1:2",
    )
    assert job.args[:4] == ("--batch_size", "64", "--num_epochs", "1")
    assert job.image == "elasticdl:mnist_pytorch"
    assert (job.resources.cpu, job.resources.memory, job.resources.limits.memory) == (0.3, 2**30, 2**31)
    assert (job.coordinator.resources.cpu, job.coordinator.resources.limits.cpu) == (0.2, 1.0)
    assert job.env["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "60"
    assert (job.volumes[0].source, job.volumes[0].target) == ("{mnist_data_dir}", "/data")
    assert job.shards.minibatches_per_shard == 2
    assert job.platform.kubernetes is not None and job.platform.kubernetes.pull_policy == "Never"
    assert load(to_yaml(job)).job == job
    (note,) = loaded.notes
    assert "holds ElasticDL's master" in note


def test_options_of_elasticdl_may_stand_apart_from_their_values() -> None:
    loaded = elasticdl("--namespace", "team", "--volume", "claim_name=c,mount_path=/c;host_path=/h,mount_path=/h")
    assert loaded.job.platform.kubernetes is not None and loaded.job.platform.kubernetes.namespace == "team"
    assert [each.source for each in loaded.job.volumes] == ["pvc:c", "/h"]


def test_what_elasticdl_has_and_we_have_not_is_said() -> None:
    told = elasticdl("--cluster_spec=x.py", "--worker_pod_priority=0.5", "--restart_policy=Always", "--use_async").notes
    for part in ("cluster_spec", "a share of pods", "--restart_policy=Always", "use_async"):
        assert part in "\n".join(told)


def test_an_image_of_ones_own_for_the_master_is_the_coordinators() -> None:
    assert elasticdl("--image_name=mine:1").job.coordinator.image == "mine:1"


@pytest.mark.parametrize(
    ("more", "without", "told"),
    [
        (["--distribution_strategy=ParameterServerStrategy"], "nothing", "trains by all-reduce"),
        ([], "distribution_strategy", "ParameterServerStrategy, the default"),
        ([], "job_command", "has no script to run"),
        (["--num_ps_pods=1"], "nothing", "no parameter servers"),
        (["--volume=mount_path=/x"], "nothing", "--volume=mount_path=/x"),
        (["--namespace"], "nothing", "--namespace has no value"),
        (["stray"], "nothing", "'stray' is not an option"),
        (["--worker_resource_request=cpu"], "nothing", "'cpu' is not a pair"),
        (["--worker_resource_request=memory=16"], "nothing", "less than 1Mi"),
    ],
)
def test_commands_of_elasticdl_that_mean_nothing_here_are_refused(more: list[str], without: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        elasticdl(*more, without=without)
    assert told in str(caught.value)


@pytest.mark.parametrize("words", [["elasticdl", "predict", "--x=1"], ["elasticdl"], ["kubectl", "apply"], []])
def test_other_commands_are_refused(words: list[str]) -> None:
    with pytest.raises(UsageError):
        load_command(words)
