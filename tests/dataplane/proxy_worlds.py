"""The worlds of the two proxies."""

import os
import select
import signal
import socket
import struct
import time
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.core.traffic.sighting import Liveness
from fairlead.dataplane.envoy import EnvoyDataplane, deadman
from fairlead.dataplane.haproxy import HaproxyDataplane
from fairlead.dataplane.haproxy.config import BEAT, BORN, HaproxyFiles
from fairlead.dataplane.haproxy.runtime import ask, execute
from fairlead.ports.dataplane import Dataplane
from tests.dataplane.worlds import AGES, RealWorld


class ProxyWorld(RealWorld):
    """A process that serves."""

    split_error_max = 1

    @abstractmethod
    def server(self) -> int:
        """The process that serves."""

    def kill(self) -> None:
        """End it as a crash would, and wait until it is gone."""
        descriptor = os.pidfd_open(self.server())
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        gone = select.poll()
        gone.register(descriptor, select.POLLIN)
        assert gone.poll(60_000)
        os.close(descriptor)
        self.until(lambda: not self._listening(), "nobody listens any more")

    def _until_said(self, liveness: Liveness) -> None:
        """Until the plane itself thinks this of its agent."""
        self.until(
            lambda: {seen.liveness for seen in self.plane.read().values()} == {liveness},
            f"the plane says {liveness}",
        )

    def left(self) -> list[str]:
        there = [str(self.folder)] if self.folder.exists() else []
        return there + self._processes() + self._listening()


class HaproxyWorld(ProxyWorld):
    """A real HAProxy."""

    def server(self) -> int:
        answer = ask(HaproxyFiles(self.folder).master, "show proc")
        return int(next(line for line in answer.splitlines() if " worker " in line).split()[0])

    def open(self) -> Dataplane:
        return haproxy(str(self.folder))

    def opener(self) -> tuple[str, Mapping[str, Any]]:
        return "tests.dataplane.proxy_worlds:haproxy", {"folder": str(self.folder)}

    def age(self, liveness: Liveness) -> None:
        """Its table forgets by the clock: there is no way to make an entry old but to wait."""
        if liveness == Liveness.FALLBACK:
            files = HaproxyFiles(self.folder)
            execute(files.socket, [f"clear table {BEAT}", f"set map {files.states} {BORN} 0"])
        else:
            time.sleep(AGES[liveness] / 1000)
        # Its clock leaves out the time in which a busy machine did not run it.
        self._until_said(liveness)


class EnvoyWorld(ProxyWorld):
    """A real Envoy with its dead-man process."""

    split_error_max = 2  # it begins at a place in the round that it draws

    def server(self) -> int:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(self.folder / "admin.sock"))
            size = struct.calcsize("3i")
            told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            return int(struct.unpack("3i", told)[0])

    def open(self) -> Dataplane:
        return envoy(str(self.folder))

    def opener(self) -> tuple[str, Mapping[str, Any]]:
        return "tests.dataplane.proxy_worlds:envoy", {"folder": str(self.folder)}

    def age(self, liveness: Liveness) -> None:
        deadman.beat(str(self.folder), deadman.now_ms() - AGES[liveness])
        self._until_said(liveness)


def haproxy(folder: str) -> Dataplane:
    """Open the HAProxy plane."""
    return HaproxyDataplane(Path(folder))


def envoy(folder: str) -> Dataplane:
    """Open the Envoy plane."""
    return EnvoyDataplane(Path(folder))
