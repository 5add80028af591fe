"""The worlds of the two proxies."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.dataplane.envoy import EnvoyPlane, deadman
from fairlead.dataplane.haproxy import HaproxyPlane
from fairlead.dataplane.haproxy.config import BEAT, BORN, Files
from fairlead.dataplane.haproxy.runtime import tell
from fairlead.ports.dataplane import Dataplane, Liveness
from tests.dataplane.worlds import AGES, RealWorld


class HaproxyWorld(RealWorld):
    """A real HAProxy."""

    split_error_max = 1

    def open(self) -> Dataplane:
        return haproxy(str(self.folder))

    def opener(self) -> tuple[str, Mapping[str, Any]]:
        return "tests.dataplane.proxy_worlds:haproxy", {"folder": str(self.folder)}

    def age(self, liveness: Liveness) -> None:
        """Its table forgets by the clock: there is no way to make an entry old but to wait."""
        if liveness == Liveness.FALLBACK:
            files = Files(self.folder)
            tell(files.socket, [f"clear table {BEAT}", f"set map {files.words} {BORN} 0"])
        else:
            time.sleep(AGES[liveness] / 1000)

    def left(self) -> list[str]:
        there = [str(self.folder)] if self.folder.exists() else []
        return there + self._processes() + self._listening()


class EnvoyWorld(RealWorld):
    """A real Envoy with its dead-man process."""

    split_error_max = 1

    def open(self) -> Dataplane:
        return envoy(str(self.folder))

    def opener(self) -> tuple[str, Mapping[str, Any]]:
        return "tests.dataplane.proxy_worlds:envoy", {"folder": str(self.folder)}

    def age(self, liveness: Liveness) -> None:
        deadman.beat(str(self.folder), deadman.now_ms() - AGES[liveness])
        self.until(
            lambda: {seen.liveness for seen in self.plane.read().values()} == {liveness},
            f"the dead-man process says {liveness}",
        )

    def left(self) -> list[str]:
        there = [str(self.folder)] if self.folder.exists() else []
        return there + self._processes() + self._listening()


def haproxy(folder: str) -> Dataplane:
    """Open the HAProxy plane."""
    return HaproxyPlane(Path(folder))


def envoy(folder: str) -> Dataplane:
    """Open the Envoy plane."""
    return EnvoyPlane(Path(folder))
