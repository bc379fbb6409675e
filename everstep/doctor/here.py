"""Judge one machine. Pure: facts in, findings out."""

from __future__ import annotations

import ipaddress
import re

from everstep.doctor.facts import Facts
from everstep.doctor.finding import Finding, error, ok, warning
from everstep.doctor.world_needs import FILES, MEMORY_BYTES, SHARE, THREADS

LEAST_TORCH = (2, 11)
LEAST_SHM_BYTES = 1 << 30
LEAST_DISK_BYTES, FEW_DISK_BYTES = 100 << 20, 5 << 30
LEAST_FILES, GOOD_FILES = 4096, 65536
LEAST_PORTS = 5000
SKEW_S, BAD_SKEW_S = 1.0, 60.0


def judge_here(facts: Facts, *, num_nodes: int = 1) -> list[Finding]:
    """`num_nodes`: of the job to come. Each has one worker per GPU, or a single worker without GPUs."""
    num_here = max(1, facts.num_gpus)
    findings = [
        ok("python", facts.python),
        *(check(facts) for check in (_torch, _devices, _shm, _disk)),
        *(check(facts, num_here, num_here * num_nodes) for check in (_files, _threads, _memory)),
        _ports(facts),
    ]
    findings.append(_names(facts, has_peers=num_nodes > 1))
    if facts.port is not None:
        findings.append(_endpoint(facts))
    if facts.clock_s is not None or facts.coordinator_problem:
        findings.append(_clock(facts))
    return findings


def judge_pool_node(facts: Facts, *, num_slots: int) -> list[Finding]:
    """What a node of a pool needs, as far as it is known at once: torch is not asked."""
    findings = [
        _disk(facts, "--folder"),
        _shm(facts),
        *(check(facts, num_slots, 1) for check in (_files, _threads, _memory)),
        _gpus(facts),
    ]
    if facts.listen_problem:
        findings.append(_ports(facts))
    if facts.clock_s is not None:
        findings.append(_clock(facts))
    return findings


def _gpus(facts: Facts) -> Finding:
    gpus = f"{facts.num_gpus} GPU{'s' * (facts.num_gpus != 1)}"
    if facts.gpu_problem:
        hint = "look at nvidia-smi and dmesg, and reset or replace the GPU; to use the others, set CUDA_VISIBLE_DEVICES"
        return error("devices", f"{gpus}: {facts.gpu_problem}", hint)
    return ok("devices", gpus)


def _torch(facts: Facts) -> Finding:
    torch = facts.torch
    if torch.problem:
        return error("torch", f"cannot be imported: {torch.problem}", "pip install torch")
    found = re.match(r"(\d+)\.(\d+)", torch.version)
    if found and (int(found[1]), int(found[2])) < LEAST_TORCH:
        least = ".".join(map(str, LEAST_TORCH))
        return error("torch", f"{torch.version} is older than {least}", f"pip install -U 'torch>={least}'")
    if not torch.has_gloo:
        return error("torch", f"{torch.version} was built without gloo", "install a build with torch.distributed")
    return ok("torch", torch.version)


def _devices(facts: Facts) -> Finding:
    torch, cpus = facts.torch, f"{facts.num_cpus} core{'s' * (facts.num_cpus != 1)}"
    if facts.num_gpus == 0:
        return ok("devices", f"no GPU, {cpus}")
    driver = f"driver {facts.driver}" if facts.driver else "driver unknown"
    gpus = f"{facts.num_gpus} GPU{'s' * (facts.num_gpus != 1)}, {driver}"
    if torch.problem:
        return ok("devices", f"{gpus}, {cpus}")
    if torch.cuda is None:
        return error("devices", f"{gpus}, but torch {torch.version} is built for CPUs", "install a CUDA build of torch")
    if torch.num_gpus < facts.num_gpus:
        return error(
            "devices",
            f"{gpus}, but torch (CUDA {torch.cuda}) sees {torch.num_gpus}",
            "look at nvidia-smi; the driver may be too old for this CUDA, or a GPU has fallen off the bus",
        )
    return ok("devices", f"{gpus}, CUDA {torch.cuda}, {cpus}")


def _shm(facts: Facts) -> Finding:
    if facts.shm_bytes is None:
        hint = "mount a tmpfs at /dev/shm: data loaders and workers of one node share memory by it"
        return warning("shared memory", "there is no /dev/shm", hint)
    text = f"/dev/shm has {_size(facts.shm_bytes)}"
    if facts.shm_bytes < LEAST_SHM_BYTES:
        hint = (
            "data loaders and workers of one node share memory by it: docker run --shm-size=8g, "
            "or on Kubernetes an emptyDir with medium Memory at /dev/shm"
        )
        return warning("shared memory", text, hint)
    return ok("shared memory", text)


def _disk(facts: Facts, option: str = "--log-dir") -> Finding:
    if facts.disk_bytes is None:
        return error("disk", f"{facts.log_dir} cannot be written to", f"give another folder: {option} DIR")
    text = f"{_size(facts.disk_bytes)} free for {facts.log_dir}"
    hint = f"make room, or give another folder: {option} DIR"
    if facts.disk_bytes < LEAST_DISK_BYTES:
        return error("disk", f"{text}; {_size(LEAST_DISK_BYTES)} are needed", hint)
    return warning("disk", text, hint) if facts.disk_bytes < FEW_DISK_BYTES else ok("disk", text)


def _files(facts: Facts, num_here: int, world_size: int) -> Finding:
    if facts.max_files < 0:
        return ok("open files", "no limit")
    largest = FILES.largest_world(facts.max_files)
    text = f"{facts.max_files} open files (ulimit -n), enough for a world of {largest:.0f} workers"
    reason = "data loaders need many" if largest >= world_size else _needs(FILES.at(world_size), "files", world_size)
    if largest >= world_size and facts.max_files >= LEAST_FILES:
        return ok("open files", text)
    can_raise = facts.max_files_hard < 0 or facts.max_files_hard >= GOOD_FILES
    wanted = GOOD_FILES if can_raise else facts.max_files_hard
    more = "" if can_raise else "; for more, an administrator must change /etc/security/limits.conf"
    return warning("open files", text, f"{reason}: run ulimit -n {wanted} before the start{more}")


def _threads(facts: Facts, num_here: int, world_size: int) -> Finding:
    if facts.threads_left is None:
        return ok("threads", "no limit")
    need, enough = THREADS.at(world_size), SHARE * facts.threads_left
    free = f"{facts.threads_left} more processes and threads (ulimit -u, pids.max)"
    text = f"{free}, enough for {enough // need:.0f} workers here"
    if need * num_here <= enough:
        return ok("threads", text)
    hint = "loaders start more: raise ulimit -u, docker run --pids-limit, or the kubelet's podPidsLimit"
    return warning("threads", text, f"{_needs(need, 'threads', world_size)}, and {hint}")


def _memory(facts: Facts, num_here: int, world_size: int) -> Finding:
    if facts.memory_bytes is None:
        return ok("memory", "unknown")
    need = MEMORY_BYTES.at(world_size)
    text = f"{_size(facts.memory_bytes)} free; a worker needs {_size(need)} besides its model and data"
    if need * num_here <= SHARE * facts.memory_bytes:
        return ok("memory", text)
    hint = f"{num_here} workers need {_size(need * num_here)}: start fewer, or end other processes"
    return warning("memory", text, hint)


def _needs(number: int, what: str, world_size: int) -> str:
    return f"a worker in a world of {world_size} needs {number} {what}"


def _ports(facts: Facts) -> Finding:
    if facts.listen_problem:
        hint = "workers must be able to listen: look at the container's security settings"
        return error("ports", f"no port can be listened on: {facts.listen_problem}", hint)
    if facts.port_range is None:
        return ok("ports", "can listen")
    low, high = facts.port_range
    text = f"can listen; {high - low + 1} free ports, {low} to {high}"
    if high - low + 1 < LEAST_PORTS:
        return warning("ports", text, "sysctl net.ipv4.ip_local_port_range='32768 60999'; firewalls must let it pass")
    return ok("ports", text)


def _names(facts: Facts, *, has_peers: bool) -> Finding:
    names = facts.names
    hint = (
        "let the host's name resolve to an address that other nodes reach (DNS or /etc/hosts), or set "
        "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the right interface"
    )
    problem = ""
    if names.problem:
        problem = f"{names.host} has no address: {names.problem}"
    elif has_peers and all(ipaddress.ip_address(each.split("%")[0]).is_loopback for each in names.addresses):
        problem = f"{names.host} is {', '.join(names.addresses)}: other nodes would find themselves there"
    if problem and names.interface:
        return ok("name", f"{problem}; gloo takes {names.interface} (GLOO_SOCKET_IFNAME)")
    if problem:
        return warning("name", problem, hint) if has_peers else ok("name", problem)
    told = f"{names.host} is {', '.join(names.addresses)}"
    if has_peers and not names.reverse:
        return warning(
            "name", f"{told}, which has no name", "add a reverse record: some tools wait for it until they time out"
        )
    return ok("name", told)


def _endpoint(facts: Facts) -> Finding:
    port = facts.port
    assert port is not None
    if port.problem:
        return error("endpoint", f"{port.endpoint}: {port.problem}", "give another port or host: --rdzv-endpoint")
    if port.is_here:
        return ok("endpoint", f"{port.endpoint} is {'served already' if port.is_taken else 'free, on this machine'}")
    if port.is_taken:
        return ok("endpoint", f"{port.endpoint} can be reached")
    hint = "start the node that owns the address, and let its firewall pass the port"
    return warning("endpoint", f"no answer from {port.endpoint} yet", hint)


def _clock(facts: Facts) -> Finding:
    if facts.clock_s is None:
        hint = facts.coordinator_hint or "is it running, and is this its URL and token?"
        return error("coordinator", facts.coordinator_problem, hint)
    return judge_skew(abs(facts.clock_s), "the coordinator")


def judge_skew(skew_s: float, whom: str) -> Finding:
    text = f"{skew_s:.1f} s from {whom}" if skew_s >= 0.1 else f"within 0.1 s of {whom}"
    hint = "run an NTP client, such as chrony: logs cannot be compared, and storage may refuse signatures"
    if skew_s > BAD_SKEW_S:
        return error("clock", text, hint)
    return warning("clock", text, hint) if skew_s > SKEW_S else ok("clock", text)


def _size(num_bytes: int) -> str:
    for unit, size in (("TB", 1 << 40), ("GB", 1 << 30), ("MB", 1 << 20)):
        if num_bytes >= size:
            return f"{num_bytes / size:.0f} {unit}" if num_bytes >= 10 * size else f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes >> 10} kB"
