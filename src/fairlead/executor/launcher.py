"""The launcher: the only process of `fairlead up` that stays root. It starts and signals runs.

    python -I -m fairlead.executor.launcher CONFIG     # by `compose.split`, never by hand

It listens to no network and reads no file of a user: three socket pairs lead to the control plane,
and each frame is checked for its size and types (`wire`), and for its evidence (`evidence`). It
ends when the control plane does; shims and their commands go on, and the next launcher finds them
(`LocalExecutor`). Whatever the control plane says, it starts nothing as root unless the operator
allowed it, nothing as the user of the control plane, who holds the ledger's keys, and nothing as a
system account.
"""

import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairlead.executor import wire
from fairlead.executor.evidence import NotRecorded
from fairlead.executor.local import LocalExecutor
from fairlead.executor.verifier import LedgerVerifier, Verifier
from fairlead.host.clock import now_ms, since_boot_ms
from fairlead.ports.executor import Keyboard
from fairlead.ports.faults import Fault, TemporaryFault, faults

CONFIG: dict[str, Any] = {
    "channels": [int],
    "folder": str,
    "allow_root": bool,
    "visible": {str: str},
    "minors": {str: int},
    "control_uid": int,
    "control_gid": int,
    "run_users": (int, None),
}


class SentTime:
    """Ledger time, as a callable: what the control plane said last, and the time since then. It
    dates what the launcher reports, and decides nothing here."""

    def __init__(self) -> None:
        self._sent = (now_ms(), since_boot_ms())

    def follow(self, sent_ms: int) -> None:
        self._sent = (sent_ms, since_boot_ms())

    def __call__(self) -> int:
        sent_ms, then_ms = self._sent
        return sent_ms + since_boot_ms() - then_ms


_FRAME = {"call": str, "arguments": dict, "evidence": (dict, None), "now_ms": int}
_RUN = {"run": str, "decision": str}
_WARNINGS = ("HUP", "USR1", "USR2", None)
Call = tuple[dict[str, Any], Callable[..., Any]]
"""The types of the arguments, and what is done with them."""


class Launcher:
    """Answers frames by means of an executor. Each channel may have a thread of its own."""

    def __init__(
        self, executor: LocalExecutor, verifier: Verifier, time: SentTime | None = None
    ) -> None:
        """`time`: the executor's."""
        self._executor, self._verifier, self._time = executor, verifier, time or SentTime()
        # Checkpoints continue each other one by one, on whatever channel they come.
        self._order = threading.Lock()
        self._acts: dict[str, Call] = {
            "start": ({"job": wire.JOB}, self._start),
            "stop": ({**_RUN, "grace_ms": int}, executor.stop),
            "pause": (_RUN, executor.pause),
            "resume": (_RUN, executor.resume),
            "resize": ({**_RUN, "devices": [str], "grace_ms": int}, self._resize),
            "warn": ({**_RUN, "notice": dict, "signal": (str, None)}, self._warn),
            "users": ({"state": (str, None), "upto": int}, lambda **shown: None),
        }
        self._questions: dict[str, Call] = {
            "followed": ({}, verifier.followed),
            "open": ({"head": dict, "public_key": str, "continues": [str]}, self._open),
            "poll": ({}, lambda: [asdict(exit) for exit in executor.poll()]),
            "running": ({}, lambda: sorted(executor.running())),
            "acknowledge": ({"exits": [wire.EXIT]}, self._acknowledge),
            "devices_of": ({"run": str}, executor.devices_of),
            "ended": ({"job": str, "run": str}, self._ended),
            "prune": ({"ended_before_ms": int, "living": [str]}, executor.prune),
            "log_parts": ({"run": str, "jobs": str}, self._log_parts),
            "newest_job": ({"run": str}, executor.newest_job),
            "output": ({"job": str}, self._output),
            "press": (
                {"run": str, "text": str, "interrupt": bool, "size": ([int], None)},
                self._press,
            ),
            "job_of": ({"pid": int}, executor.job_of),
        }

    def serve(self, channel: socket.socket) -> None:
        """Until the other side is gone, or says what is not in the format."""
        while (asked := wire.receive(channel)) is not None:
            answer = self._answer(asked)
            wire.send(channel, {**answer, "size": self._verifier.size()})

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        wire.check(asked, _FRAME, "frame")
        self._time.follow(asked["now_ms"])
        call, given, evidence = asked["call"], asked["arguments"], asked["evidence"]
        found = self._acts.get(call) or self._questions.get(call)
        if found is None:
            raise wire.BadFrame(f"there is no call {call[:40]!r}")
        shape, work = found
        wire.check(given, shape, call)
        try:
            if call in self._acts:
                with self._order, faults(f"verify {call}"):
                    self._verify(call, given, evidence)
            return {"done": work(**given)}
        except NotRecorded as refused:
            return {"fault": "permanent", "message": f"the launcher refuses it: {refused}"}
        except ProcessLookupError as gone:
            return {"fault": "process", "message": str(gone)}
        except Fault as fault:
            kind = "temporary" if isinstance(fault, TemporaryFault) else "permanent"
            return {"fault": kind, "message": str(fault)}

    def _verify(self, call: str, given: dict[str, Any], evidence: Any) -> None:
        verifier, executor = self._verifier, self._executor
        if call == "start" and executor.has_begun(given["job"]["id"]):
            verifier.repeat(evidence)
        elif call == "start":
            verifier.start(wire.job_of(given["job"]), evidence)
        elif call == "users":
            verifier.users(given["state"], given["upto"], evidence)
        else:
            run, decision = given["run"], given["decision"]
            held = executor.devices_of(run)
            if call == "resize":
                verifier.resize(run, given["devices"], decision, held, evidence)
            else:
                verifier.act(run, decision, held, evidence)

    def _open(self, head: dict[str, Any], public_key: str, continues: list[str]) -> dict[str, str]:
        with self._order, faults("follow the ledger"):
            self._verifier.open(head, public_key, continues)
        return {"kind": self._executor.kind, "isolation": self._executor.isolation}

    def _start(self, job: dict[str, Any]) -> None:
        self._executor.start(wire.job_of(job))

    def _resize(self, run: str, devices: list[str], grace_ms: int, decision: str) -> None:
        self._executor.resize(run, tuple(devices), grace_ms=grace_ms, decision=decision)

    def _warn(self, run: str, notice: dict[str, Any], signal: str | None, decision: str) -> None:
        if signal not in _WARNINGS:
            raise wire.BadFrame("this signal does not warn")
        self._executor.warn(run, notice, signal=signal, decision=decision)

    def _acknowledge(self, exits: list[dict[str, Any]]) -> None:
        self._executor.acknowledge([wire.exit_of(row) for row in exits])

    def _ended(self, job: str, run: str) -> dict[str, Any] | None:
        found = self._executor.ended(job, run)
        return None if found is None else asdict(found)

    def _log_parts(self, run: str, jobs: str) -> list[str]:
        return [str(part) for part in self._executor.log_parts(run, jobs)]

    def _output(self, job: str) -> dict[str, Any] | None:
        found = self._executor.output(job)
        if found is None:
            return None
        return {"parts": [str(part) for part in found.parts], "dropped": found.dropped}

    def _press(self, *, run: str, text: str, interrupt: bool, size: list[int] | None) -> int | None:
        try:
            typed = bytes.fromhex(text)
        except ValueError as error:
            raise wire.BadFrame("what is typed is written in hex") from error
        if size is not None and (len(size) != 2 or not all(0 <= part < 2**16 for part in size)):
            raise wire.BadFrame("a terminal has rows and columns")
        keys = Keyboard(typed, interrupt, None if size is None else (size[0], size[1]))
        return self._executor.press(run, keys)


def main(text: str) -> int:
    config = json.loads(text)
    wire.check(config, CONFIG, "config")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with the control plane, and not before
    try:
        with faults("open the launcher's folder"):
            launcher = _launcher(config)
    except Fault as fault:
        sys.stderr.write(f"fairlead launcher: {fault}\n")
        return 1
    first, *others = (socket.socket(fileno=number) for number in config["channels"])
    for channel in others:
        threading.Thread(target=_serve, args=(launcher, channel), daemon=True).start()
    _serve(launcher, first)
    return 0


def _launcher(config: dict[str, Any]) -> Launcher:
    time = SentTime()
    executor = LocalExecutor(
        Path(config["folder"]),
        allow_root=config["allow_root"],
        visible=config["visible"],
        minors=config["minors"],
        readers=config["control_gid"],
        now_ms=time,
    )
    folder, uid = Path(config["folder"]), config["control_uid"]
    verifier = LedgerVerifier(folder, uid, config["run_users"])
    return Launcher(executor, verifier, time)


def _serve(launcher: Launcher, channel: socket.socket) -> None:
    """A control plane that does not keep to the format, or a bug of ours, ends the process: the
    control plane then ends too, and both are started again."""
    try:
        launcher.serve(channel)
    except wire.BadFrame as error:
        sys.stderr.write(f"fairlead launcher: {error}\n")
        os._exit(70)
    except BrokenPipeError:
        pass
    except BaseException:  # noqa: BLE001 - a thread that ends would leave its caller waiting
        traceback.print_exc()
        os._exit(70)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
