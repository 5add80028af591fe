"""The executor of one machine: job folders, a shim for each, and what to do when a shim is gone.

All it knows is on disk, so another object, in this process or after a crash in the next, goes on
where this one was. Two at once do no harm: only the holder of a job's lock acts on it.
"""

import contextlib
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from signal import SIGTERM
from typing import Any

from fairlead.executor import bounds, confine, environment, launch, peers, shim
from fairlead.executor.job_folder import JobFolder, PastJobs, key, shims_of
from fairlead.host import files
from fairlead.host.clock import boot_id, now_ms, since_boot_ms
from fairlead.ports.executor import Exit, Job, JobOutput, Keyboard
from fairlead.ports.faults import PermanentFault, TemporaryFault, faults

LOG_BYTES_MAX = 64 * 2**20
WIDTH_FILE = "width.json"
UMASK = 0o027
# A shim that dies before it can start anything is tried again; one that always dies is a reason.
_LAUNCHES_MAX = 10
_FOR_READERS = 0o2710
"""Their group passes through, and lists nothing; what is made inside has the same group."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SEEN, _SEEN_EVERY_MS = "seen.json", 10_000
"""When the executor last looked after its jobs: after a restart of the machine it is all that is
known of their end."""


class LocalExecutor:
    """An `Executor` over processes of this machine. `folder` is its own, and survives it.

    `visible` says what CUDA calls a leased slot (`node#0` to a UUID), if not by its ordinal;
    `minors` the number of its device node, which the device filter leaves open. `readers` is the
    group that may read the output of jobs, besides us.
    """

    pauses = True

    def __init__(
        self,
        folder: Path,
        *,
        allow_root: bool = False,
        root_as: int | None = None,
        visible: Mapping[str, str] | None = None,
        minors: Mapping[str, int] | None = None,
        log_bytes_max: int = LOG_BYTES_MAX,
        kinds: tuple[confine.Kind, ...] = confine.KINDS,
        readers: int | None = None,
        now_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._folder = folder.resolve()
        self._allow_root, self._visible = allow_root, dict(visible or {})
        self._root_as = root_as
        self._minors = dict(minors or {})
        self._log_bytes_max, self._now_ms = log_bytes_max, now_ms
        self._readers = readers
        self._mutex = threading.RLock()
        self._jobs, self._done = self._folder / "jobs", self._folder / "done"
        # "told" holds the width files; running jobs know its path.
        self._runs, self._widths = self._folder / "runs", self._folder / "told"
        self._past = PastJobs(self._folder / "past")
        with faults("open the executor's folder"):
            for part in (self._folder, self._jobs, self._done, self._runs, self._widths):
                part.mkdir(mode=0o700, parents=True, exist_ok=True)
            for part in (self._folder, self._widths):
                part.chmod(0o711)  # commands of other users find their width file, and no other
            if readers is not None:
                self._admit_readers(readers)
            self.kind, self._cgroups = confine.find(kinds)
            self.controls = bounds.find(self.kind, self._cgroups)
            # A control plane that is itself a run's process: its run does not count for its peers.
            self._around = peers.job_cgroups("self")
            folders = map(JobFolder, sorted(self._jobs.iterdir()))
            own = [folder.require_own() for folder in folders if folder.job]
            self._last_seen = files.read_json(self._folder / SEEN) or {}
            self._last_seen_ms, self._seen_ms = int(self._last_seen.get("time_ms", 0)), 0
            self._open = {folder.job["id"]: folder for folder in own}
            self._asked = set[str]()
            """Jobs whose start this process was asked for: only these are launched. A document that
            an earlier one wrote, or another user, starts nothing by itself."""

    @property
    def isolation(self) -> str:
        """What holds a run to its devices, CPUs and memory here, or why nothing does."""
        return self.controls.words()

    def _admit_readers(self, group: int) -> None:
        """What is made in these folders is of their group; jobs of an earlier start are given."""
        for part in (self._jobs, self._done):
            os.chown(part, -1, group)
            part.chmod(_FOR_READERS)
            for folder in part.iterdir():
                if folder.stat().st_gid != group:
                    for name in (shim.OUTPUT, shim.OLDER_OUTPUT):
                        with contextlib.suppress(FileNotFoundError):
                            os.chown(folder / name, -1, group)
                            (folder / name).chmod(0o640)
                    os.chown(folder, -1, group)
                    folder.chmod(_FOR_READERS)

    def start(self, job: Job) -> None:
        with self._mutex, faults(f"start {job.id}"):
            folder = self._open.get(job.id) or JobFolder(self._jobs / key(job.id))
            if (self._done / folder.path.name).exists():
                return
            if not folder.job:
                if job.id in self._past:
                    return
                for other in self._of(job.run):
                    self._mend(other)
                    if other.exit is None:
                        running = f"{job.run} is still running as {other.job['id']}"
                        raise TemporaryFault(running)
                self._create(folder, job)
            elif job.id not in self._asked:
                self._create_again(folder, job)
            self._asked.add(job.id)
            self._open.setdefault(job.id, folder)
            self._mend(folder)

    def stop(self, run: str, grace_ms: int, *, decision: str) -> None:
        """SIGTERM to the group now, SIGKILL to all that is left after the grace; does not wait."""
        with self._mutex, faults(f"stop {run}"):
            for folder in self._of(run):
                folder.ask(shim.STOP, {"grace_ms": grace_ms, "decision": decision}, durable=True)
                self._mend(folder)

    def pause(self, run: str, *, decision: str) -> None:
        with self._mutex, faults(f"pause {run}"):
            for folder in self._of(run):
                folder.ask(shim.PAUSED, {"decision": decision})

    def resume(self, run: str, *, decision: str) -> None:
        with self._mutex, faults(f"resume {run}"):
            for folder in self._of(run):
                (folder.path / shim.PAUSED).unlink(missing_ok=True)
                folder.wake()

    def resize(self, run: str, devices: tuple[str, ...], *, grace_ms: int, decision: str) -> None:
        with self._mutex, faults(f"resize {run}"):
            for folder in self._of(run):
                self._write_width(folder, devices)
                minors = self._open_minors(devices)
                folder.announce_width({"minors": minors, "grace_ms": grace_ms}, decision)

    def warn(
        self, run: str, notice: Mapping[str, object], *, signal: str | None, decision: str
    ) -> None:
        with self._mutex, faults(f"warn {run}"):
            for folder in self._of(run):
                place = self._widths / folder.path.name / environment.WARNING_FILE
                files.replace_json(place, dict(notice), durable=False, mode=0o644)
                if signal is not None:
                    folder.ask(shim.WARNING, {"decision": decision, "signal": signal})

    def held(self, run: str, devices: tuple[str, ...]) -> bool | None:
        return None

    def _open_minors(self, devices: Iterable[str]) -> list[int]:
        return [self._minors[device] for device in devices if device in self._minors]

    def _write_width(self, folder: JobFolder, devices: tuple[str, ...]) -> None:
        place = self._widths / folder.path.name
        place.mkdir(exist_ok=True)
        place.chmod(0o755)
        kept, shown = list(devices), environment.shown(devices, self._visible)
        width = {"devices": kept, "visible": shown, "width": len(kept)}
        files.replace_json(place / WIDTH_FILE, width, durable=False, mode=0o644)

    def poll(self) -> list[Exit]:
        with self._mutex, faults("look after the jobs"):
            exits = [folder.exit for folder in self._mended() if folder.exit is not None]
            return sorted(exits, key=lambda exit: (exit.time_ms, exit.run, exit.job))

    def acknowledge(self, exits: Iterable[Exit]) -> None:
        """Put these jobs away. Their ids stay taken and their output stays until `prune`."""
        with self._mutex, faults("put jobs away"):
            for exit in exits:
                folder = self._open.get(exit.job)
                if folder is None or folder.exit is None:
                    continue
                # Where the shim was killed after it wrote the exit.
                confine.described(folder.job).remove()
                bounds.remove(folder.job)
                shutil.rmtree(self._widths / folder.path.name, ignore_errors=True)
                with contextlib.suppress(FileNotFoundError):  # another executor was faster
                    folder.path.rename(self._done / folder.path.name)
                    files.sync_directory(self._done)
                    files.sync_directory(self._jobs)
                del self._open[exit.job]
                self._asked.discard(exit.job)

    def running(self) -> set[str]:
        with self._mutex, faults("look after the jobs"):
            found = {folder.job["id"] for folder in self._mended() if folder.exit is None}
            now_ms = self._now_ms()
            if not self._seen_ms <= now_ms < self._seen_ms + _SEEN_EVERY_MS:
                seen = {"time_ms": now_ms, "boot": boot_id(), "since_boot_ms": since_boot_ms()}
                files.replace_json(self._folder / SEEN, seen, durable=False)
                self._seen_ms = now_ms
            return found

    def ended(self, job: str, run: str) -> Exit | None:
        with self._mutex, faults(f"look for {job}"):
            if job in self._open:
                return None
            done = JobFolder(self._done / key(job))
            if done.job:
                return done.exit
            reason = "there is no trace of it on this machine"
            time_ms = self._last_seen_ms
            return Exit(job, run, time_ms, lost=True, interrupted=True, reason=reason)

    def _mended(self) -> Collection[JobFolder]:
        for folder in self._open.values():
            self._mend(folder)
        return self._open.values()

    def log_parts(self, run: str, jobs: str = "") -> list[Path]:
        newest = self.newest_job(run)
        found = self.output(newest) if newest.startswith(jobs) else None
        return [] if found is None else list(found.parts)

    def newest_job(self, run: str) -> str:
        """The id of a run's latest start; empty where there was none."""
        with self._mutex, faults(f"find the output of {run}"):
            newest = files.read_json(self._runs / key(run)) or {}
            folder = self._find(str(newest["folder"])) if newest else None
            return "" if folder is None else str(folder.job["id"])

    def output(self, job: str) -> JobOutput | None:
        """What is kept of a job's output; None where the job is not known."""
        with self._mutex, faults(f"find the output of {job}"):
            folder = self._find(key(job))
            return None if folder is None else folder.output()

    def has_begun(self, job: str) -> bool:
        """Whether a job's command was let go, now or long ago: a start then does nothing."""
        with self._mutex, faults(f"look for {job}"):
            folder = self._open.get(job)
            if folder is not None:
                return folder.has_begun or folder.exit is not None
            return (self._done / key(job)).exists() or job in self._past

    def devices_of(self, run: str) -> dict[str, list[str]]:
        """The jobs of a run that are not over, and the devices that each was told to have."""
        with self._mutex, faults(f"look for the devices of {run}"):
            found: dict[str, list[str]] = {}
            for folder in self._of(run):
                width = files.read_json(self._widths / folder.path.name / WIDTH_FILE) or {}
                found[folder.job["id"]] = list(width.get("devices", ()))
            return found

    def _find(self, name: str) -> JobFolder | None:
        folders = (JobFolder(parent / name) for parent in (self._jobs, self._done))
        return next((folder for folder in folders if folder.job), None)

    def job_of(self, pid: int) -> str | None:
        """The job that a process belongs to: its id, or "" for one that is over or that another
        executor started. None: it is no run's process. Raises ProcessLookupError for a process
        that has ended. Takes no lock: the answer must not wait for a start."""
        folders = list(self._open.values())
        trees = self.kind == "tree" or any(f.job["confine"]["kind"] == "tree" for f in folders)
        return peers.job_of(
            pid,
            cgroups={self._cgroup_name(folder): str(folder.job["id"]) for folder in folders},
            shims=shims_of(folders) if trees else None,
            around=self._around,
        )

    def press(self, run: str, keys: Keyboard) -> int | None:
        """Pass on what the owner types; how many bytes were taken. None: no job of the run is
        running. Bytes for a job without a terminal are not taken."""
        with self._mutex, faults(f"type into {run}"):
            return next((folder.press(keys) for folder in self._of(run)), None)

    def prune(self, ended_before_ms: int, *, living: Collection[str] = ()) -> int:
        """Forget acknowledged jobs that ended before this; how many. Their ids stay taken.

        `living`: runs that may start again. What they wrote stays, however long ago.
        """
        with faults("forget old jobs"):
            paths = sorted(self._done.iterdir())
        count = 0
        failed: PermanentFault | None = None
        for path in paths:  # one at a time, so that no other call waits for all of them
            try:
                with self._mutex, faults(f"forget {path.name}"):
                    count += self._forget(JobFolder(path), ended_before_ms, living)
            except PermanentFault as fault:  # a damaged one does not keep the others
                failed = fault
        if failed is not None:
            raise failed
        return count

    def _forget(self, folder: JobFolder, ended_before_ms: int, living: Collection[str]) -> bool:
        # Only what has ended is put away: what lacks its end is the rest of a broken removal.
        if folder.job and folder.exit is not None:
            if folder.exit.time_ms >= ended_before_ms or folder.job["run"] in living:
                return False
            newest = self._runs / key(folder.job["run"])
            if files.read_json(newest) == {"folder": folder.path.name}:
                newest.unlink()
            self._past.add(folder.job["id"])
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder.path)
        return True

    def _of(self, run: str) -> list[JobFolder]:
        open_ = self._open.values()
        return [folder for folder in open_ if folder.job["run"] == run and folder.exit is None]

    def _create_again(self, folder: JobFolder, job: Job) -> None:
        """What an earlier process wrote down and did not begin, begins as it is asked for now."""
        lock = files.try_lock(folder.lock)
        if lock is None:
            return  # its shim lives
        try:
            if folder.exit is None and not folder.has_begun:
                self._create(folder, job)
        finally:
            os.close(lock)

    def _create(self, folder: JobFolder, job: Job) -> None:
        """Write the job down. What can be refused already ends it here, with the reason."""
        document: dict[str, object] = {"id": job.id, "run": job.run, "owner": job.owner}
        reason = None
        try:
            if not job.command:
                raise environment.BadEnvironment("the run has no command")
            user = environment.resolve(job.user, allow_root=self._allow_root, root_as=self._root_as)
            width = str(self._widths / folder.path.name / WIDTH_FILE)
            document |= {
                "argv": list(job.command),
                "env": environment.compose(job, user, self._visible, width),
                "secrets": dict(job.secret_env),
                "cwd": job.working_directory,
                "gid": user.gid,
                "groups": list(user.groups),
                "umask": UMASK if job.umask is None else job.umask,
                "terminal": job.terminal,
                "allow_root": self._allow_root,
                "log_bytes_max": self._log_bytes_max,
                "output_mode": 0o600 if self._readers is None else 0o640,
                "bounds": self._bounds(job),
            }
            uid = user.uid
        except environment.BadEnvironment as refusal:
            reason, uid = str(refusal), -1
        document |= {"uid": uid, "confine": self._confine(folder), "refused": reason}
        self._write_width(folder, job.devices)
        # A folder left half made by a crash is completed.
        folder.path.mkdir(mode=0o700, exist_ok=True)
        if self._readers is not None:
            folder.path.chmod(_FOR_READERS)
        folder.write(document)
        files.sync_directory(self._jobs)
        files.replace_json(self._runs / key(job.run), {"folder": folder.path.name}, durable=False)

    def _bounds(self, job: Job) -> dict[str, Any]:
        """Devices and processes where they can be held; what the run itself asked for, or no
        start."""
        found: dict[str, Any] = {}
        if "devices" in self.controls.places:
            found |= self.controls.bound("devices", self._open_minors(job.devices))
        try:
            if job.cpu_millicores is not None:
                found |= self.controls.bound("cpu", job.cpu_millicores)
            if job.memory_bytes is not None:
                found |= self.controls.bound("memory", job.memory_bytes)
            if job.pids is not None or "pids" in self.controls.places:
                found |= self.controls.bound("pids", job.pids or bounds.PIDS_DEFAULT)
        except KeyError as error:
            raise environment.BadEnvironment(str(error.args[0])) from error
        return found

    def _confine(self, folder: JobFolder) -> dict[str, str]:
        # A tree has no cgroup of its own, but its bounds have, and take their name from here.
        return {"kind": self.kind, "path": f"{self._cgroups}/{self._cgroup_name(folder)}"}

    def _cgroup_name(self, folder: JobFolder) -> str:
        # Two executors of one machine may be asked for the same id; their cgroups must differ.
        own = hashlib.sha256(os.fsencode(self._folder)).hexdigest()[:8]
        return f"{own}-{folder.path.name}"

    def _mend(self, folder: JobFolder) -> None:
        """Finish what a crash left undone. Nothing to do while the shim lives, or after the end."""
        if folder.exit is not None or files.locked(folder.lock):
            return
        lock = files.try_lock(folder.lock)
        if lock is None:
            return
        try:
            again = folder.exit is None and self._settle(folder)
        finally:
            os.close(lock)
        if again:
            folder.launch()

    def _settle(self, folder: JobFolder) -> bool:
        """Without a shim: end what has begun, and say whether what has not may begin."""
        job, holding = folder.job, confine.described(folder.job)
        begun = files.read_json(folder.path / shim.COMMAND)  # None: it was never let go
        how: dict[str, Any]
        time_ms = self._now_ms()
        if begun is not None:
            if not holding.empty():
                holding.kill()
            if not holding.empty():
                return False  # till the next poll: the exit must mean that devices are free
            how = {"lost": True, "reason": "its shim was killed, so it was ended"}
            if begun["boot"] != boot_id():
                how = {"lost": True, "interrupted": True, "reason": "the machine was restarted"}
                began_ms = int((folder.path / shim.COMMAND).stat().st_mtime * 1000)
                seen_ms = self._last_seen_ms or time_ms
                # A file has the wall clock's time, which may have been wrong.
                began_ms = min(began_ms, seen_ms + _SEEN_EVERY_MS)
                time_ms = min(time_ms, max(began_ms, seen_ms))
                how |= {"boot": begun["boot"], "since_boot_ms": self._last_alive_ms(begun)}
        elif job["refused"] is not None:
            how = {"code": launch.CANNOT, "reason": job["refused"]}
        elif (folder.path / shim.STOP).exists():
            how = {"signal": int(SIGTERM), "reason": "stopped before it was started"}
        elif folder.launches() >= _LAUNCHES_MAX:
            reason = "its shim cannot be started; see shim.err in the job's folder"
            how = {"code": launch.CANNOT, "reason": reason}
        else:
            return job["id"] in self._asked
        files.replace_json(folder.path / shim.EXIT, {"time_ms": time_ms, **how})
        holding.remove()
        bounds.remove(job)
        return False

    def _last_alive_ms(self, begun: dict[str, Any]) -> int:
        """When a command of an earlier boot was last there, since that boot: at our last look, or
        when it began, if that was later."""
        last, began_ms = self._last_seen, int(begun["start_ticks"]) * 1000 // _TICKS_PER_S
        seen_ms = int(last.get("since_boot_ms", 0)) if last.get("boot") == begun["boot"] else 0
        return max(began_ms, seen_ms)
