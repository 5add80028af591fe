"""What an import makes: manifests, commands to run, and everything that was not carried over."""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from fairlead.schema.border import BadInput
from fairlead.schema.objects import API_VERSION, read_manifest

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Lost:
    """Something that a Budget cannot say, or says otherwise."""

    object: str
    field: str
    value: str
    why: str


@dataclass(slots=True)
class Imported:
    """The result of an import."""

    manifests: list[Document] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    """What is left for the operator to run, such as bindings of users."""
    lost: list[Lost] = field(default_factory=list)

    def lose(self, object: str, field: str, value: object, why: str) -> None:
        self.lost.append(Lost(object, field, str(value), why))

    def add_budget(
        self, object: str, owner: str, parents: Iterable[str], envelopes: list[Document]
    ) -> None:
        """A budget that the server would take; else it is reported."""
        spec = {"owner": owner, "parents": sorted(set(parents)), "envelopes": envelopes}
        document = {
            "apiVersion": API_VERSION,
            "kind": "Budget",
            "metadata": {"name": slug(owner)},
            "spec": spec,
        }
        try:
            read_manifest(document)
        except BadInput as error:
            self.lose(object, error.path, "", f"the budget would be refused: {error.message}")
            return
        names = [one["metadata"]["name"] for one in self.manifests]
        if slug(owner) in names:
            self.lose(object, "name", owner, f"another budget is called {slug(owner)!r}")
            return
        self.manifests.append(document)

    def document(self) -> Document:
        lost = [asdict(one) for one in self.lost]
        return {"manifests": self.manifests, "commands": self.commands, "lost": lost}


def slug(text: str) -> str:
    """A name that an object may have."""
    return re.sub(r"[^a-z0-9.-]+", "-", text.lower()).strip(".-")[:63].strip(".-") or "unnamed"
