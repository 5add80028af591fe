"""A command as a Run: where it runs, what it inherits from the shell, who pays, on what.

What passes from the submitter's environment is a list (`PASSED`), because the ledger keeps it for
good: variables often hold secrets. `--env NAME` adds one by name.
"""

import os
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from fairlead.cli.client import ARRAY, Client
from fairlead.core.units import counted
from fairlead.schema.objects import API_VERSION

PASSED = (
    *("PATH", "LANG", "LANGUAGE", "TZ", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONUNBUFFERED"),
    *("LD_LIBRARY_PATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCH_HOME", "HF_HOME"),
    *("XDG_CACHE_HOME", "CUDA_HOME", "TMPDIR"),
)
PASSED_PREFIXES = ("LC_", "CONDA_", "NCCL_", "UV_")
_NAME_MAX, _SUFFIX = 63, 5
_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"
ARRAY_MAX = 1000
NEW = 0
"""The version of an object that must not exist yet."""
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
_MOST = re.compile(r"0{0,8}[1-9][0-9]{0,8}", re.ASCII)


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What is asked for on the command line, or by the directives of a script."""

    command: tuple[str, ...] = ()
    gpus: int = 1
    time: str | None = None
    ends_at_time: bool = False
    """Whether it is ended after its time, as Slurm does; else the time is an estimate."""
    name: str | None = None
    title: str | None = None
    """What a name is made from where none is given; else from the command."""
    owner: str | None = None
    flavor: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str], ...] = ()
    directory: str | None = None
    after: tuple[tuple[str, str], ...] = ()
    """Runs, each with afterOK or afterAny."""
    array: str | None = None
    retry: int = 0
    cpus: float | None = None
    memory: str | None = None
    borrow: tuple[str, ...] = ()
    """Owners that may lend, in order."""
    output: str | None = None
    """A file for its output, and for its errors too unless `error` is one."""
    error: str | None = None
    terminal: bool = False


def passed_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(environ.items())
        if (name in PASSED or name.startswith(PASSED_PREFIXES)) and value
    }


def read_env(given: Iterable[str], environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """`NAME=VALUE`, or `NAME` for the value that it has here."""
    found = []
    for text in given:
        name, sign, value = text.partition("=")
        if not sign and name not in environ:
            raise click.BadParameter(f"--env: {name!r} is not set here; write {name}=VALUE")
        found.append((name, value if sign else environ[name]))
    return tuple(found)


def read_secrets(given: Iterable[str]) -> tuple[tuple[str, str], ...]:
    pairs = [text.partition("=") for text in given]
    for name, _, path in pairs:
        if not name or not path:
            raise click.BadParameter(f"--secret: must be NAME=FILE, got {name + path!r}")
    return tuple((name, os.path.abspath(path)) for name, _, path in pairs)


def read_after(given: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """`RUN`, `RUN:any` or `RUN:ok`."""
    found = []
    for text in given:
        name, _, how = text.removeprefix("run/").partition(":")
        if how not in ("", "ok", "any") or not name:
            raise click.BadParameter(f"--after: must be RUN, RUN:ok or RUN:any, got {text!r}")
        found.append((name, "afterAny" if how == "any" else "afterOK"))
    return tuple(found)


def new_name(title: str) -> str:
    """`python-k3x9w`: the program, and letters that no other run has."""
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "run"
    suffix = "".join(secrets.choice(_LETTERS) for _ in range(_SUFFIX))
    return f"{slug[: _NAME_MAX - 12 - _SUFFIX]}-{suffix}"


def read_array(text: str) -> tuple[list[int], int | None]:
    """`0-99%4`, `1,3,7` or `0-10:2`: the indices, and how many may run at once."""
    listed, _, most = text.partition("%")
    indices: list[int] = []
    for part in listed.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or (most and not _MOST.fullmatch(most)):
            raise click.BadParameter(f"--array: must be like 0-99%4, 1,3,7 or 0-10:2, got {text!r}")
        first, last, step = (int(match[1]), int(match[2] or match[1]), int(match[3] or 1))
        if step == 0 or last < first or last - first >= ARRAY_MAX * step:
            raise click.BadParameter(
                f"--array: {part!r} has none, or more than {ARRAY_MAX} indices"
            )
        indices += range(first, last + 1, step)
    if len(set(indices)) != len(indices) or len(indices) > ARRAY_MAX:
        raise click.BadParameter(f"--array: repeats an index, or has more than {ARRAY_MAX}")
    return indices, int(most) if most else None


def manifests(job: JobRequest) -> list[dict[str, Any]]:
    """The Run, or one for each index of an array.

    At most N of an array run at once (`%N`) because each starts after the one N places before it.
    """
    title = job.title or Path(job.command[0]).stem
    name = job.name or new_name(title)
    if job.array is None:
        return [_manifest(job, name, {"%x": title, "%A": name, "%a": ""}, {})]
    indices, most = read_array(job.array)
    made = []
    for place, index in enumerate(indices):
        after = job.after
        if most is not None and place >= most:
            after = (*after, (f"{name}-{indices[place - most]}", "afterAny"))
        env = (
            *job.env,
            ("SLURM_ARRAY_JOB_ID", name),
            ("SLURM_ARRAY_TASK_ID", str(index)),
            ("SLURM_ARRAY_TASK_COUNT", str(len(indices))),
        )
        words = {"%x": title, "%A": name, "%a": str(index)}
        one = replace(job, after=after, env=env)
        made.append(_manifest(one, f"{name}-{index}", words, {ARRAY: name}))
    return made


_SHELL, _TO_FILE = ["/bin/sh", "-c"], 'exec >"$1"'


def _redirected(command: Sequence[str], output: str, error: str | None) -> list[str]:
    """A command whose output goes to files, as `#SBATCH --output` says; `logs` then names it."""
    to = '2>"$2"' if error else "2>&1"
    return [*_SHELL, f'{_TO_FILE} {to}; shift 2; exec "$@"', "sh", output, error or "", *command]


def output_file(spec: Mapping[str, Any]) -> str | None:
    """The file that a run was submitted to write its output to."""
    command = spec.get("command", [])
    if len(command) < 5 or command[:2] != _SHELL or not command[2].startswith(_TO_FILE):
        return None
    return str(Path(spec.get("workingDirectory", "")) / command[4])


def _manifest(
    job: JobRequest, name: str, words: Mapping[str, str], labels: dict[str, str]
) -> dict[str, Any]:
    """`words`: what the file names of the output may hold, as Slurm writes it."""
    mask = os.umask(0)
    os.umask(mask)
    env = {**passed_environment(os.environ), **dict(job.env)}
    if job.terminal:
        env.setdefault("TERM", os.environ.get("TERM", "xterm"))
    command = list(job.command)
    if job.output is not None:
        files = [job.output, job.error or ""]
        for sign, text in {**words, "%j": name, "%%": "%"}.items():
            files = [file.replace(sign, text) for file in files]
        command = _redirected(command, *files)
    spec: dict[str, Any] = {
        "owner": job.owner,
        "flavor": job.flavor,
        "totalGPUs": job.gpus,
        "command": command,
        "env": env,
        "workingDirectory": job.directory or os.getcwd(),
        "umask": f"0{mask & 0o777:03o}",
    }
    if job.time is not None:
        spec["duration"] = job.time
        if job.ends_at_time:
            spec["maxRuntime"] = job.time
    for field, value in (("cpus", job.cpus), ("memory", job.memory)):
        if value is not None:
            spec[field] = value
    if job.secrets:
        spec["secretEnv"] = {key: {"file": path} for key, path in job.secrets}
    if job.borrow:
        spec["funding"] = {"allowBorrow": True, "sponsors": list(job.borrow)}
    if job.retry:
        spec |= {"restartPolicy": "OnFailure", "backoffLimit": job.retry}
    if job.after:
        spec["after"] = [{"run": run, "condition": how} for run, how in job.after]
    if job.terminal:
        spec["terminal"] = True
    metadata = {"name": name, "labels": labels, "resourceVersion": NEW}
    return {"apiVersion": API_VERSION, "kind": "Run", "metadata": metadata, "spec": spec}


def chosen(client: Client, job: JobRequest) -> JobRequest:
    """The job with its owner and flavor; one that was not given must be the only one that fits."""
    if job.owner is not None and job.flavor is not None:
        return job
    me, budgets = client.get("/v1/whoami"), client.get("/v1/budgets")
    in_service, devices = Counter[str](), Counter[str]()
    for node in client.objects("Node"):
        spec = node["spec"]
        devices[spec["flavor"]] += spec["devices"]
        in_service[spec["flavor"]] += 0 if spec["cordoned"] else spec["devices"]
    owners = me["owners"]
    if me["admin"] and not owners:
        owners = sorted({row["owner"] for row in budgets})
    if job.owner is None and not owners and me["admin"]:
        raise click.UsageError(
            "there is no budget yet, so no owner: `fairlead apply -f budgets.yaml` makes one "
            "(`fairlead apply --help` shows such a file)"
        )
    if me.get("in_run"):  # a server of an earlier version does not say
        raise click.UsageError(
            "a process of a run may read, and act on its own run only: submit from outside of the "
            "run, or name a token's file in FAIRLEAD_TOKEN_FILE"
        )
    if job.owner is None and not owners:
        raise click.UsageError(
            f"{me['user']} acts for no owner: ask the operator for `fairlead users bind "
            f"{me['user']} --owner OWNER`"
        )
    paid = {(row["owner"], row["flavor"]) for row in budgets}
    # What is cordoned comes back: a run can wait for it.
    fits = _fits(job, owners, in_service, paid) or _fits(job, owners, devices, paid)
    if not fits:
        there = ", ".join(f"{name} ({count})" for name, count in sorted(devices.items())) or "none"
        wanted = counted(job.gpus, "GPU")
        raise click.UsageError(f"no flavor here has {wanted} for you; there are: {there}")
    for field, place in (("owner", 0), ("flavor", 1)):
        names = sorted({pair[place] for pair in fits})
        if getattr(job, field) is None and len(names) > 1:
            raise click.UsageError(
                f"more than one {field} fits: say which with --{field} {'|'.join(names)}"
            )
    owner, flavor = fits[0]
    return replace(job, owner=owner, flavor=flavor)


def _fits(
    job: JobRequest, owners: Sequence[str], free: Mapping[str, int], granted: set[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Owners and flavors: the owner has an envelope of the flavor, or none at all and its family
    pays; and the nodes have as many devices."""
    wanted = [job.owner] if job.owner is not None else list(owners)
    flavors = [job.flavor] if job.flavor is not None else sorted(free)
    pairs = [(owner, flavor) for owner in wanted for flavor in flavors]
    own = {owner for owner, _ in granted}
    return [
        (owner, flavor)
        for owner, flavor in pairs
        if (job.flavor is not None or free.get(flavor, 0) >= job.gpus)
        and (owner not in own or (owner, flavor) in granted or job.flavor is not None)
    ]
