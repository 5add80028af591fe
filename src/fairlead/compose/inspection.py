"""What decides beside the log, compared with it: kept states, keys, the jobs of the executor.

`fairlead audit verify` looks here after the ledger itself verified. States are made again from the
entries, so that one that was bound but is wrong is found, too. A job's file says as which user a
command runs: it must be the user of the run in the ledger.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_IMODE, S_ISDIR

import msgspec

from fairlead.api import access
from fairlead.api.lab import NOBODY_UID
from fairlead.core.invariant import InvariantBroken
from fairlead.engine.gpu import checkpoint
from fairlead.engine.gpu.projection import Projection
from fairlead.executor import environment, shim
from fairlead.executor.users import ROOT
from fairlead.host import files
from fairlead.ledger.place import FILE, KEYS
from fairlead.ledger.reading import LIMIT_MAX, StoreReader
from fairlead.ports.faults import Fault
from fairlead.ports.ledger import Coverage, Damaged, Progress
from fairlead.schema.convert import convert, decode_json

PAGE = 1_000
_ALWAYS = (
    Coverage(
        "options and files of `fairlead up`", None, "who may change them decides what it does"
    ),
    Coverage("records of node and traffic agents", None, "`fairlead replay` and `fairlead audit`"),
)


class JobFile(msgspec.Struct):
    """What is compared of a job's file; `argv` and `allow_root` are missing in a refused one."""

    id: str
    run: str
    uid: int
    refused: str | None
    argv: list[str] = []
    allow_root: bool = False


@dataclass(slots=True)
class Inspection:
    """What was compared, and what was not; raises `Damaged` on the way."""

    covered: list[Coverage] = field(default_factory=list)
    not_covered: list[Coverage] = field(default_factory=list)

    def covers(self, what: str, count: int | None, how: str) -> None:
        self.covered.append(Coverage(what, count, how))

    def leaves_out(self, what: str, how: str) -> None:
        self.not_covered.append(Coverage(what, None, how))


def inspect(reader: StoreReader, state: Path | None, progress: Progress | None) -> Inspection:
    """Compare what is beside the log with the log. `state`: the directory of the control plane,
    where its ledger is a file in it."""
    found = Inspection()
    projection = _states(reader, found, progress)
    if state is not None:
        _modes(state, found)
        _keys(state, reader, found)
        _jobs(state / "runs" / "jobs", reader, projection, found)
    found.not_covered += _ALWAYS
    return found


# --- states


def _states(reader: StoreReader, found: Inspection, progress: Progress | None) -> Projection | None:
    """Fold the log once; where a state was kept, the fold must be that state."""
    if reader.archived_to():
        found.leaves_out("states of the control plane", "not made again: entries are archived")
        return None
    rights, projection = access.AccessState(), Projection()
    kept_rights, kept = reader.snapshot_get(access.SNAPSHOT), reader.snapshot_get(checkpoint.NAME)
    total = reader.head().head.size
    while page := reader.entries(projection.seq, PAGE):
        for entry in page:
            try:
                projection.apply(entry)
                if entry.kind in access.KINDS:
                    rights.fold(entry)
            except (Fault, InvariantBroken, msgspec.MsgspecError, LookupError) as error:
                how = f"no control plane wrote entry {entry.seq}, {entry.kind}: {error}"
                found.leaves_out("states of the control plane", how)
                return None
            if kept_rights is not None and entry.seq == kept_rights.seq:
                _same_rights(rights, kept_rights.state)
            if kept is not None and entry.seq == kept.seq:
                _same_projection(projection, kept.state, found)
        if progress is not None:
            progress(projection.seq, total)
    found.covers("users and tokens", len(rights.users), "made again from the entries")
    found.covers("objects, runs and charges", projection.seq, "made again from the entries")
    return projection


def _same_rights(rights: access.AccessState, state: bytes) -> None:
    if decode_json(state, access.AccessState) != rights:
        raise Damaged(f"the snapshot {access.SNAPSHOT!r} is not what its entries add up to")


def _same_projection(projection: Projection, state: bytes, found: Inspection) -> None:
    try:
        kept = checkpoint.restore(state)
    except msgspec.MsgspecError:
        how = "of another release: not used, and not compared"
        found.leaves_out(f"snapshot {checkpoint.NAME}", how)
        return
    if checkpoint.export(kept) != checkpoint.export(projection):
        raise Damaged(f"the snapshot {checkpoint.NAME!r} is not what its entries add up to")


# --- files


def _modes(state: Path, found: Inspection) -> None:
    """Who may write here replaces the ledger, its keys or the jobs."""
    paths = [state, *(state / name for name in (FILE, KEYS, "runs", "runs/jobs"))]
    present = [path for path in paths if os.path.lexists(path)]
    for path in present:
        status = path.lstat()
        if S_IMODE(status.st_mode) & 0o022 and not (S_ISDIR(status.st_mode) and _sticky(status)):
            raise Damaged(f"{path} can be written by other users (chmod go-w)")
    found.covers("files", len(present), "written by their owner alone")


def _sticky(status: os.stat_result) -> bool:
    """A folder in which users cannot replace what others made, such as /tmp."""
    return bool(status.st_mode & 0o1000)


def _keys(state: Path, reader: StoreReader, found: Inspection) -> None:
    key = reader.head().head.key_id
    try:
        files.read_private(state / KEYS / f"{key}.pem")
    except PermissionError as error:
        found.leaves_out("signing key", error.strerror or "not readable by you")
    except OSError:
        found.leaves_out("signing key", f"{key} is not in {state / KEYS}")
    else:
        found.covers("signing key", None, f"{key} is in {KEYS}, for its owner alone")


def _jobs(
    folder: Path, reader: StoreReader, projection: Projection | None, found: Inspection
) -> None:
    """Each job that is not over runs as the user that submitted its run."""
    try:
        jobs = dict(_read_jobs(folder))
    except PermissionError:
        found.leaves_out("jobs of the executor", "not readable by you; run this as its user")
        return
    if projection is None:
        if jobs:
            found.leaves_out("jobs of the executor", "entries are archived")
        return
    # A job follows its entry: read the newest ones after the jobs.
    for entry in reader.entries(projection.seq, LIMIT_MAX):
        projection.apply(entry)
    for path, job in jobs.items():
        problem = _problem(job, projection, path.stat().st_uid if path.exists() else 0)
        if problem and path.exists() and not (path.parent / shim.EXIT).exists():
            raise Damaged(problem)
    found.covers("jobs of the executor", len(jobs), "run, command and user against the ledger")


def _read_jobs(folder: Path) -> Iterator[tuple[Path, JobFile]]:
    """Those that are not over: the others decide nothing."""
    if not folder.is_dir():
        return
    for path in sorted(path / shim.JOB for path in folder.iterdir()):
        document = files.read_json(path)
        if not document or (path.parent / shim.EXIT).exists():
            continue
        try:
            yield path, convert(document, JobFile)
        except msgspec.ValidationError as error:
            raise Damaged(f"{path} is not the file of a job: {error}") from error


def _problem(job: JobFile, projection: Projection, executor: int) -> str:
    """What a job's file says otherwise than the ledger; `executor`: its user, whose runs have no
    user of their own."""
    name, run = job.id, projection.runs.get(job.run)
    stored = projection.get("Run", job.run)
    if run is None or stored is None or run.job != name:
        return f"job {name} of the executor is of no start that the ledger has"
    if job.refused is not None:
        return ""
    if list(projection.run_spec(job.run).command) != job.argv:
        return f"job {name} runs another command than the ledger has for {job.run}"
    uid = executor if stored.user is None else environment.uid_of(stored.user)
    if uid == ROOT and not job.allow_root:  # it would be refused, but for the demo's executor
        uid = NOBODY_UID
    if uid != job.uid:
        return f"job {name} runs as user {job.uid}, the ledger says {stored.user}"
    return ""
