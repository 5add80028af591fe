"""Runs that start after others (`spec.after`), until those are in the ledger.

`kubectl apply` writes one object after the other, in any order: a run that names one which is not
there yet waits for it, where embedded mode would refuse it.
"""

from collections.abc import Collection

from fairlead.engine.gpu.values import Denied
from fairlead.kube.client import Document
from fairlead.kube.gpu.verdicts import NO_RUN
from fairlead.kube.kinds import engine_name
from fairlead.kube.watch import Key
from fairlead.schema.border import BadInput

CHAIN_MAX = 100
"""Runs, each waiting for the next, that are searched for a circle: a tenant may have thousands."""


class RunOrder:
    """Which run waits for which; `runs` are those of the ledger, by name."""

    def __init__(self, runs: Collection[str]) -> None:
        self._runs = runs
        self._awaits: dict[Key, Key] = {}

    def forget(self, key: Key) -> None:
        self._awaits.pop(key, None)

    def name_after(self, key: Key, spec: Document) -> None:
        """Call the runs that it starts after as the ledger does. Raises `Denied` where one is not
        there yet, and `BadInput` where that one waits for this."""
        wanted = [Key(key.namespace, row["run"]) for row in spec.get("after") or ()]
        if not wanted:
            return
        spec["after"] = [
            {**row, "run": engine_name(*run)}
            for row, run in zip(spec["after"], wanted, strict=True)
        ]
        missing = next((run for run in wanted if engine_name(*run) not in self._runs), None)
        if missing is None or engine_name(*key) in self._runs:
            return
        self._awaits[key] = missing
        if key in self._chain(key):
            text = f"forms a circle: {missing.name!r} starts after {key.name!r}"
            raise BadInput("spec.after", text)
        raise Denied(NO_RUN, f"there is no Run {missing.name!r} in its namespace yet")

    def ready(self) -> set[Key]:
        """Runs that waited for one which is in the ledger by now."""
        return {key for key, run in self._awaits.items() if engine_name(*run) in self._runs}

    def _chain(self, key: Key) -> set[Key]:
        """Runs that one waits for, each of which waits for the next."""
        found: set[Key] = set()
        while (key := self._awaits.get(key, key)) not in found and len(found) < CHAIN_MAX:
            found.add(key)
        return found
