"""The options of the subcommands: names, defaults of their kind, help, and the panel that `--help` shows them in.

torchrun's also come from the environment, as PET_<NAME>. Imported by every `--help`: nothing heavy here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from everstep.env import trust
from everstep.errors import UsageError

WORKERS, NODES, LOGS = "Workers", "Nodes", "Logs"
POLICY = "How the coordinator decides"
NOTHING = "torchrun's that change nothing"


def there(path: Path | None) -> Path | None:
    """A file that is named must be there, also where nothing would be read from it."""
    if path is not None and not path.is_file():
        raise UsageError(f"there is no token file {path}", hint="see --token-file and EVERSTEP_TOKEN_FILE")
    return path


def spelling(name: str) -> str:
    """An option as we write it: torchrun's spelling works too, and so do short names that would not fit in the help."""
    dashed = name.replace("_", "-")
    return {"shutdown-s": "shutdown-timeout"}.get(dashed, dashed)


def _option(panel: str, *names: str, text: str, **settings: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **settings)


def _torchruns(panel: str, *names: str, text: str, **settings: Any) -> Any:
    """The first name is torchrun's."""
    variables = [f"PET_{names[0].removeprefix('--').replace('-', '_').upper()}", *settings.pop("also", [])]
    return _option(panel, *names, text=text, envvar=variables, show_envvar=False, **settings)


# --- the script -----------------------------------------------------------------------------------

Script = Annotated[str, typer.Argument(help="The training script.", metavar="SCRIPT", show_default=False)]
OptionalScript = Annotated[
    str | None, typer.Argument(help="The training script.", metavar="SCRIPT", show_default=False)
]
Args = Annotated[list[str] | None, typer.Argument(help="Its arguments.", metavar="ARGS", show_default=False)]

# --- workers --------------------------------------------------------------------------------------

NumWorkersOfNode = Annotated[
    str,
    _torchruns(WORKERS, "--nproc-per-node", text="Workers to start here: a number, or auto, gpu, cpu.", metavar="N"),
]
NumWorkers = Annotated[int, _option(WORKERS, "--workers", text="Workers to start on this node.", min=1)]
MaxRestarts = Annotated[
    int, _torchruns(WORKERS, "--max-restarts", text="So many restarts of workers in the whole job.", min=0, metavar="N")
]
IsModule = Annotated[
    bool, _torchruns(WORKERS, "--module", "-m", text="The script is the name of a module, as in python -m.")
]
IsProgram = Annotated[bool, _torchruns(WORKERS, "--no-python", text="The script is a program, to be run as it is.")]
Role = Annotated[str, _torchruns(WORKERS, "--role", text="What workers see as ROLE_NAME.", metavar="NAME")]
IsLocalRankVirtual = Annotated[
    bool,
    _torchruns(WORKERS, "--virtual-local-rank", text="Each worker sees one GPU, and LOCAL_RANK is 0 for all."),
]
ShutdownS = Annotated[
    float,
    _torchruns(
        WORKERS,
        "--shutdown-timeout",
        text="When the run is asked to end, workers have so many seconds to do so. Also --shutdown-s.",
        also=["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"],
        metavar="S",
    ),
]
Signals = Annotated[
    str,
    _torchruns(
        WORKERS,
        "--signals-to-handle",
        text="Signals that ask the run to end. Default: SIGTERM, SIGINT, SIGHUP, SIGQUIT.",
        metavar="NAMES",
        show_default=False,
    ),
]
HangTimeoutS = Annotated[
    float | None,
    _option(
        WORKERS,
        "--hang-timeout",
        text="Workers that print and do nothing for so long hang: show their stacks, restart them.",
        metavar="S",
    ),
]
WantsCheck = Annotated[
    bool, _option(WORKERS, "--check", text="First measure all nodes; those that fail or are slow are left out.")
]
KeepWarmS = Annotated[
    float,
    _option(
        WORKERS,
        "--keep-warm",
        text="Keep a process with torch imported for so many seconds: the next run starts at once.",
        metavar="S",
        min=0.0,
    ),
]

# --- nodes ----------------------------------------------------------------------------------------

Nodes = Annotated[
    str,
    _torchruns(
        NODES,
        "--nnodes",
        text="Nodes of the job: a number, or from MIN to MAX. Not given: this one, and agents that come.",
        metavar="MIN[:MAX]",
        show_default=False,
    ),
]
IsStandalone = Annotated[
    bool, _torchruns(NODES, "--standalone", text="This node alone; what is said of a rendezvous is ignored.")
]
RdzvEndpoint = Annotated[
    str, _torchruns(NODES, "--rdzv-endpoint", text="Where the nodes meet.", metavar="HOST[:PORT]", show_default=False)
]
RdzvId = Annotated[
    str | None, _torchruns(NODES, "--rdzv-id", text="Nodes that give the same one are one job.", metavar="ID")
]
RdzvBackend = Annotated[
    str | None,
    _torchruns(NODES, "--rdzv-backend", text="c10d, static or everstep: nodes meet at the coordinator anyway."),
]
RdzvConf = Annotated[
    str,
    _torchruns(
        NODES,
        "--rdzv-conf",
        text="join_timeout, last_call_timeout (seconds), is_host.",
        metavar="KEY=VALUE,…",
        show_default=False,
    ),
]
NodeRank = Annotated[
    int | None, _torchruns(NODES, "--node-rank", text="This node's number, if the nodes are numbered.", metavar="N")
]
MasterAddr = Annotated[
    str | None, _torchruns(NODES, "--master-addr", text="Node 0, if the nodes are numbered.", metavar="HOST")
]
MasterPort = Annotated[
    int | None, _torchruns(NODES, "--master-port", text="And a free port of it.", metavar="PORT", min=0, max=65535)
]
Address = Annotated[
    str | None,
    _torchruns(
        NODES,
        "--local-addr",
        "--address",
        text="Where other nodes reach this one; found by itself if not given.",
        metavar="HOST",
    ),
]
CoordinatorUrl = Annotated[
    str,
    _option(NODES, "--coordinator", text="URL of the coordinator.", metavar="URL", envvar="EVERSTEP_COORDINATOR"),
]
OptionalCoordinatorUrl = Annotated[
    str | None,
    _option(
        NODES,
        "--coordinator",
        text="URL of a coordinator; one is started for this run if not given.",
        metavar="URL",
        envvar="EVERSTEP_COORDINATOR",
    ),
]
TokenFile = Annotated[
    Path | None,
    _option(
        NODES,
        "--token-file",
        text="File with the coordinator's token, readable by you alone.",
        envvar="EVERSTEP_TOKEN_FILE",
    ),
]
GivenTokenFile = Annotated[
    Path | None,
    _option(
        NODES,
        "--token-file",
        text="File with the coordinator's token, readable by you alone.",
        envvar="EVERSTEP_TOKEN_FILE",
        callback=there,
    ),
]
CaFile = Annotated[
    Path | None,
    _option(
        NODES,
        "--ca-file",
        text="Certificate (PEM) that signed the coordinator's; else the system's are trusted.",
        envvar="EVERSTEP_CA",
        callback=trust,
    ),
]
JobId = Annotated[str, _option(NODES, "--job", text="The job's id.", metavar="ID", envvar="EVERSTEP_JOB")]
KnownCoordinatorUrl = Annotated[
    str | None,
    _option(
        NODES,
        "--coordinator",
        text="URL of the coordinator; else that of the newest run in the log folder.",
        metavar="URL",
        envvar="EVERSTEP_COORDINATOR",
    ),
]
KnownJobId = Annotated[
    str | None,
    _option(
        NODES, "--job", text="The job's id; else the newest in the log folder.", metavar="ID", envvar="EVERSTEP_JOB"
    ),
]
OptionalJobId = Annotated[
    str | None, _option(NODES, "--job", text="The job's id; a new one if not given.", metavar="ID")
]
NodeName = Annotated[
    str | None, _option(NODES, "--name", text="This node's name, unique in the job; the host's and a number else.")
]
AgentHeartbeatS = Annotated[float, _option(NODES, "--heartbeat-s", text="How often to speak up.")]

# --- logs -----------------------------------------------------------------------------------------

LogDir = Annotated[
    Path,
    _torchruns(LOGS, "--log-dir", text="Logs, events and progress boards go to a folder in here, named by the job."),
]
Redirects = Annotated[
    str,
    _torchruns(
        LOGS,
        "--redirects",
        "-r",
        text="Not on the console, only in files: 1 stdout, 2 stderr, 3 both, or RANK:N,RANK:N by local rank.",
        metavar="N",
    ),
]
Tee = Annotated[
    str, _torchruns(LOGS, "--tee", "-t", text="In files and on the console, in spite of --redirects.", metavar="N")
]
LocalRanks = Annotated[
    str,
    _torchruns(
        LOGS,
        "--local-ranks-filter",
        text="Show only these on the console.",
        metavar="RANK,…",
        show_default=False,
    ),
]
StdoutTexts = Annotated[
    str,
    _torchruns(
        LOGS,
        "--duplicate-stdout-filters",
        text="Lines of stdout with one of these texts also go to filtered_stdout.log.",
        metavar="TEXT,…",
        show_default=False,
    ),
]
StderrTexts = Annotated[
    str,
    _torchruns(
        LOGS,
        "--duplicate-stderr-filters",
        text="Lines of stderr with one of these texts also go to filtered_stderr.log.",
        metavar="TEXT,…",
        show_default=False,
    ),
]
IsQuiet = Annotated[bool, _option(LOGS, "--quiet", "-q", text="Do not repeat the workers' output here.")]

IsJson = Annotated[bool, _option(LOGS, "--json", text="Print JSON instead of a table.")]

# --- the policy -----------------------------------------------------------------------------------


def _policy(name: str, text: str) -> Any:
    return _option(POLICY, f"--{name}", text=text)


MinWorkers = Annotated[int | None, _policy("min-workers", "Below this the job waits. Default: 1.")]
MaxWorkers = Annotated[int | None, _policy("max-workers", "More are spares. Default: no limit.")]
StartS = Annotated[float | None, _policy("start-s", "Wait so long for all workers at the start. Default: 60.")]
HeartbeatS = Annotated[float | None, _policy("heartbeat-s", "How often workers and agents speak up. Default: 1.")]
LeaseS = Annotated[float | None, _policy("lease-s", "No proof of life for so long: lost. Default: 3.")]
ArriveS = Annotated[float | None, _policy("arrive-s", "After a loss, survivors have so long to arrive. Default: 2.")]
StallS = Annotated[float | None, _policy("stall-s", "All wait for each other for so long: network cut. Default: 5.")]
HangS = Annotated[float | None, _policy("hang-s", "One computes for so long while others wait: hung. Default: 600.")]
FenceS = Annotated[float | None, _policy("fence-s", "Cut from the coordinator for so long: stop. Default: 600.")]
LastCallS = Annotated[
    float | None, _policy("last-call-s", "Wait so long for one more node before a start. Default: 1.")
]
JoinS = Annotated[float | None, _policy("join-s", "Too few nodes for so long: stop. Default: 600.")]
UndecidedS = Annotated[
    float | None, _policy("undecided-s", "Workers that have not joined by then use no ElasticTrainer. Default: 5.")
]
MicroBatchDeaths = Annotated[
    int | None, _policy("micro-batch-deaths", "A micro-batch that killed so many stops the job. Default: 3.")
]
MinibatchesPerShard = Annotated[
    int | None, _policy("minibatches-per-shard", "Samples are leased in shards of so many batches. Default: 8.")
]
ShardLeaseS = Annotated[
    float | None, _policy("shard-lease-s", "A silent worker's samples go to others after so long. Default: 60.")
]
ShardFailures = Annotated[
    int | None, _policy("shard-failures", "A shard that failed so many times stops the job. Default: 3.")
]
StragglerFactor = Annotated[
    float | None, _policy("straggler-factor", "A lease so many times older than usual is slow. Default: 4.")
]

# --- checkpoints ----------------------------------------------------------------------------------

CheckpointUri = Annotated[str, typer.Argument(help="A directory, or a URL such as s3://bucket/run7.", metavar="URI")]
WhichStep = Annotated[str, typer.Option("--step", help="latest, best, or the number of a step.")]
OptionalStep = Annotated[str | None, typer.Option("--step", help="Only this one: latest, best, or a number.")]
ExportTarget = Annotated[Path, typer.Argument(help="The file to write: NAME.safetensors or NAME.pt.", metavar="FILE")]
OnlyPrefix = Annotated[str, typer.Option("--only", help="Only this entry of the state, such as model.", metavar="NAME")]
KeepLatest = Annotated[int | None, typer.Option("--keep-latest", help="Keep so many of the newest.", min=1)]
KeepBest = Annotated[int | None, typer.Option("--keep-best", help="Keep so many of the best.", min=0)]
Metric = Annotated[str | None, typer.Option("--metric", help="The metric that says which is best.", metavar="NAME")]
Mode = Annotated[str | None, typer.Option("--mode", help="min: smaller is better; max: larger is.")]
IsDryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")]

# --- torchrun's that change nothing ---------------------------------------------------------------

MonitorInterval = Annotated[
    float | None, _torchruns(NOTHING, "--monitor-interval", text="Ends are seen at once.", metavar="S")
]
StartMethod = Annotated[
    str | None, _torchruns(NOTHING, "--start-method", text="Each worker has an interpreter of its own.")
]
EventLogHandler = Annotated[
    str | None, _torchruns(NOTHING, "--event-log-handler", text="All events are in events.jsonl.")
]
IsRunPath = Annotated[bool, _torchruns(NOTHING, "--run-path", text="The script is run in a process of its own.")]
LogsSpecs = Annotated[str | None, _torchruns(NOTHING, "--logs-specs", text="Refused: plug-ins are not loaded.")]
NumaBinding = Annotated[str | None, _torchruns(NOTHING, "--numa-binding", text="Workers are not bound to cores.")]

# --- the job file ---------------------------------------------------------------------------------

JobSource = Annotated[
    list[str],
    typer.Argument(help="The file, - for stdin, or: -- elasticdl train …", metavar="FILE", show_default=False),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a key: resources.gpu=2. Can be given several times.", metavar="KEY=VALUE"),
]


# --- submitted jobs -------------------------------------------------------------------------------

JOBS = "Job files"

JobFile = Annotated[
    Path | None,
    _option(JOBS, "--file", "-f", text="Submit this job file instead of running SCRIPT here.", metavar="FILE"),
]
PlatformName = Annotated[
    str | None,
    _option(
        JOBS, "--platform", "-b", text="Where: local, compose, kubernetes, slurm, pbs, oci; else as the file says."
    ),
]
IsDryRender = Annotated[bool, _option(JOBS, "--dry-run", text="Print what would be submitted, and touch nothing.")]
IsFollowed = Annotated[bool, _option(JOBS, "--follow", text="Print its lines until its end.")]
ProjectFolder = Annotated[Path, typer.Argument(help="Where to; made if it is missing.", metavar="[DIR]")]
Framework = Annotated[str, typer.Option("--framework", help="What the script trains with.")]
ProjectPlatform = Annotated[
    str | None, typer.Option("--platform", "-b", help="What the job file names; oci: files in ADS's layout.")
]
IsForced = Annotated[bool, typer.Option("--force", help="Overwrite what is there.")]
BuildFile = Annotated[
    Path | None,
    typer.Option("--file", "-f", help="The job file; else job.yaml or train.yaml, if there is one.", metavar="FILE"),
]
ImageName = Annotated[
    str | None, typer.Option("--image", envvar="IMAGE_NAME", help="Its name; else the job file's, else the job's.")
]
ImageTag = Annotated[
    str | None, typer.Option("--tag", "-t", envvar="TAG", help="Its tag; else the name's, else latest.")
]
DockerfilePath = Annotated[str | None, typer.Option("--dockerfile", help="Its path; else as the job file says.")]
BuildArguments = Annotated[
    list[str] | None,
    typer.Option("--build-arg", help="For the Dockerfile. Can be given several times.", metavar="KEY=VALUE"),
]
IsPushed = Annotated[bool, typer.Option("--push", "-p", help="Push it, too.")]
IsDryBuild = Annotated[bool, typer.Option("--dry-run", help="Print the commands, and run none.")]
SubmittedJob = Annotated[str, typer.Argument(help="Our id of it, the platform's, or its name.", metavar="ID")]
OptionalSubmittedJob = Annotated[
    str | None,
    typer.Argument(
        help="A submitted job: our id of it, the platform's, or its name.", metavar="ID", show_default=False
    ),
]
LogRank = Annotated[
    int | None, typer.Option("--rank", min=0, help="Lines of whoever has or had this rank alone.", metavar="RANK")
]
LogWorker = Annotated[
    str | None, typer.Option("--worker", help="Lines of this worker alone, such as w1.", metavar="NAME")
]
InfoFile = Annotated[
    Path | None, typer.Option("--file", "-f", help="What `everstep run -f` has printed.", metavar="FILE")
]
NumNodes = Annotated[int, typer.Option("--nodes", help="So many from now on.", min=1)]
OrderText = Annotated[
    str, typer.Option("--order", help="What the job's processes are told; JSON, or its file.", envvar="EVERSTEP_ORDER")
]
OptionalOrderText = Annotated[
    str | None,
    typer.Option("--order", help="What the job's processes are told; JSON, or its file.", envvar="EVERSTEP_ORDER"),
]
ContainerCommand = Annotated[
    list[str] | None, typer.Argument(help="Run this instead.", metavar="[COMMAND …]", show_default=False)
]
JobFolder = Annotated[Path, typer.Option("--folder", help="Where the job's store, token and code are.")]
ListenHost = Annotated[str, typer.Option("--host", help="Address to listen on.")]
ListenPort = Annotated[int, typer.Option("--port", help="Port to listen on; 0: as before, else any free one.")]
FleetName = Annotated[
    str, typer.Option("--fleet", help="Who makes the nodes: none, requeued, local, kubernetes, indexed.")
]
Deadline = Annotated[
    float | None,
    typer.Option("--deadline", help="Unix time at which this node is taken away.", envvar="EVERSTEP_DEADLINE"),
]


def refuse_others(ctx: typer.Context, allowed: tuple[str, ...], *, because: str) -> None:
    refuse(ctx, tuple(name for name in ctx.params if name not in allowed), because=because)


def refuse(ctx: typer.Context, names: tuple[str, ...], *, because: str) -> None:
    """Those of them that stand on the command line."""
    for name in names:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and ctx.params[name] not in (None, []):
            raise typer.BadParameter(f"not with this: {because}", ctx=ctx, param_hint=f"'--{name.replace('_', '-')}'")
