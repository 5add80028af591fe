"""Writes a bill of materials: `make sbom`. CycloneDX 1.5, from the lock, without a network.

    python deploy/supply/sbom.py [--out dist]

Components are the pins of requirements/run.txt with their hashes; licences are read from the
metadata of the installed distributions, which pip checked against the same hashes. The same lock
gives the same bytes: no time, no random number.
"""

import argparse
import json
import sys
import tomllib
from email.message import Message
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from locks import ROOT, Pin, key, read_lock

_SPDX = {
    "MIT License": "MIT",
    "MIT": "MIT",
    "BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0-only",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "ISC License (ISCL)": "ISC",
}
"""Classifiers of packages that do not name their licence by its SPDX identifier."""


def licences(found: Message) -> list[dict[str, Any]]:
    """The licence as a distribution says it; an empty list where it says nothing."""
    expression = found.get("License-Expression")
    if expression:
        return [{"expression": expression}]
    names = [
        line.split(" :: ")[-1]
        for line in found.get_all("Classifier", [])
        if line.startswith("License ::")
    ]
    names = [name for name in names if name != "OSI Approved"]
    text = (found.get("License") or "").strip()
    if not names and text and "\n" not in text:
        names = [text]
    if not names:
        return []
    return [{"license": {"id": _SPDX[name]} if name in _SPDX else {"name": name}} for name in names]


def component(pin: Pin) -> dict[str, Any]:
    try:
        found = metadata(pin.name)
        said, version = licences(found), found["Version"]  # type: ignore[arg-type]  # a Message
    except PackageNotFoundError:  # for another platform or Python
        said, version = [], pin.version
    if version != pin.version:
        raise SystemExit(f"{pin.name} {version} is installed, the lock has {pin.version}")
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": pin.purl,
        "name": pin.name,
        "version": pin.version,
        "purl": pin.purl,
        "properties": [{"name": "fairlead:file-sha256", "value": value} for value in pin.sha256],
    }
    return made | ({"licenses": said} if said else {})


def document(lock: Path, project: dict[str, Any]) -> dict[str, Any]:
    pins = read_lock(lock)
    own = f"pkg:pypi/{project['name']}@{project['version']}"
    needs: dict[str, set[str]] = {own: set(), **{pin.purl: set() for pin in pins}}
    known = {pin.name: pin.purl for pin in pins}
    for pin in pins:
        for parent in pin.via:
            needs[known.get(key(parent), own)].add(pin.purl)
    body: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": project["name"],
                "version": project["version"],
                "purl": own,
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": [component(pin) for pin in pins],
        "dependencies": [
            {"ref": ref, "dependsOn": sorted(needed)} for ref, needed in sorted(needs.items())
        ],
    }
    serial = uuid5(NAMESPACE_URL, json.dumps(body, sort_keys=True))
    return {**body, "serialNumber": f"urn:uuid:{serial}"}


def write(out: Path, lock: Path = ROOT / "requirements" / "run.txt") -> Path:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    made = document(lock, project)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{project['name']}-{project['version']}.cdx.json"
    path.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
    silent = [row["name"] for row in made["components"] if "licenses" not in row]
    print(f"{path}: {len(made['components'])} components")
    if silent:
        print(f"without a licence in their metadata: {', '.join(silent)}", file=sys.stderr)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the bill of materials (CycloneDX JSON).")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    write(parser.parse_args().out)
