"""The command line of another system's job, into the native form: its launcher's options become keys, the rest is run.

A shell's line is taken apart as far as that is safe: commands before the last one become `setup`; a last
command that needs a shell keeps one. Only variables that the other system itself sets are expanded."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from everstep.job_file.draft import Draft
from everstep.job_file.entrypoint import QUOTED, Launch, needs_shell, raw_words, without_launcher

_PIECE = re.compile(rf"{QUOTED}|&&|\|\||[;\n]|.", re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_CONTROL = re.compile(r"(?:^|\s)(?:if|then|for|while|until|case|do|done|fi|function)(?:\s|$)|\|\||[(){}]|&\s*$")
_LAUNCHER = re.compile(r"\b(?:dlrover-run|torchrun|torch\.distributed\.(?:run|launch)|determined\.launch)\b")
_MEETING = {  # of --rdzv-conf
    "join_timeout": "join_s",
    "timeout": "join_s",
    "lastcall_timeout": "last_call_s",
    "last_call_timeout": "last_call_s",
}
# where nodes meet, and how they are watched, is Everstep's to know
_NOTHING_HERE = {
    *("--standalone", "--rdzv-endpoint", "--rdzv-backend", "--rdzv-id", "--node-rank", "--master-addr"),
    *("--master-port", "--monitor-interval", "--start-method", "--accelerator", "--run-path", "--no-python"),
    "--use-env",
}


def put_command(draft: Draft, words: Sequence[str], variables: Mapping[str, str]) -> None:
    """`variables` are those that the other system sets, and their values."""
    shell = words[0].rpartition("/")[2] if words else ""
    if len(words) == 3 and shell in ("bash", "sh") and re.fullmatch(r"-[a-z]*c", words[1]):
        put_shell_line(draft, words[2], variables)
    else:
        if not words:
            raise draft.refused("the command is empty", hint="python train.py", code="command-empty")
        _put_launch(draft, without_launcher([_expanded(word, variables) for word in words]))


def put_shell_line(draft: Draft, text: str, variables: Mapping[str, str]) -> None:
    text = _expanded(text.replace("\\\n", " "), variables).strip()
    *before, last = _commands(text) or [""]
    if any(_CONTROL.search(re.sub(QUOTED, "", each)) for each in (*before, last)):
        _put_script(draft, text)
        return
    raw = raw_words(last)
    while raw and _ASSIGNMENT.fullmatch(raw[0]):
        before.append(f"export {raw.pop(0)}")
    draft.put("setup", value=before)
    try:
        launch = without_launcher([word for each in raw for word in shlex.split(each)])
    except ValueError:
        raise draft.refused(f"{last!r} has an unclosed quote", code="command-quotes") from None
    if not launch.words:
        raise draft.refused(f"{text!r} starts nothing", hint="python train.py", code="command-without-program")
    if needs_shell(last):
        _put_shell(draft, launch, raw)
    else:
        _put_launch(draft, launch)


def _put_script(draft: Draft, text: str) -> None:
    if found := _LAUNCHER.search(text):
        raise draft.refused(
            f"{found[0]} cannot be removed from a longer script",
            hint="a job file with `setup` for what comes before, and `entrypoint` for what it starts",
            code="launcher-inside-script",
        )
    draft.put("entrypoint", value=["bash", "-c", text])


def _put_shell(draft: Draft, launch: Launch, raw: Sequence[str]) -> None:
    """The launcher is taken away from the words as they were written: quotes and variables are the shell's."""
    is_module = launch.words[0] == "-m"
    num_kept = len(launch.words)
    if is_module and not (len(raw) >= num_kept and raw[-num_kept] == "-m"):  # it was the launcher's own option
        num_kept -= 1
    kept = " ".join(raw[len(raw) - num_kept :])
    is_python = is_module or launch.words[0].endswith(".py")
    prefix = "-m " if is_module and not kept.startswith("-m ") else ""
    draft.put("entrypoint", value=["bash", "-c", f"exec python -u {prefix}{kept}" if is_python else kept])
    draft.say("the command needs a shell: each worker runs it through bash, and starts slower than a script")
    _put_options(draft, launch)


def _put_launch(draft: Draft, launch: Launch) -> None:
    num_words = 2 if launch.words[:1] == ("-m",) else 1
    is_python = num_words == 2 or launch.words[0].endswith(".py")
    draft.put("entrypoint", value=list(launch.words[:num_words] if is_python else launch.words))
    draft.put("args", value=list(launch.words[num_words:]) if is_python else None)
    _put_options(draft, launch)


def _put_options(draft: Draft, launch: Launch) -> None:
    for option, value in launch.options.items():
        if option == "--nnodes":
            draft.put("nodes", value=value)
        elif option in ("--nproc-per-node", "--nproc"):
            draft.put("workers_per_node", value=value)
        elif option == "--max-restarts":
            draft.put("restarts", value=value)
        elif option in ("--network-check", "--comm-perf-test") or (option == "--precheck" and value != "0"):
            draft.put("health", "check", value=True)
        elif option == "--rdzv-conf":
            _put_meeting(draft, value)
        elif option not in _NOTHING_HERE:
            draft.say(f"{launch.launcher} {option} was not carried over")


def _put_meeting(draft: Draft, conf: str) -> None:
    for part in filter(None, conf.split(",")):
        name, _, value = part.partition("=")
        if name in _MEETING:
            draft.put("elastic", _MEETING[name], value=value)
        else:
            draft.say(f"--rdzv-conf {name} was not carried over")


def _commands(text: str) -> list[str]:
    """At &&, ; and ends of lines, outside quotes."""
    commands = [""]
    for piece in _PIECE.findall(text):
        if piece in ("&&", ";", "\n"):
            commands.append("")
        else:
            commands[-1] += piece
    return [command.strip() for command in commands if command.strip()]


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """$NAME, ${NAME} and Kubernetes' $(NAME)."""
    for name, value in variables.items():
        text = re.sub(rf"\$(?:{name}\b|\{{{name}\}}|\({name}\))", value, text)
    return text
