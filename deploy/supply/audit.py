"""Looks for known vulnerabilities of the pinned packages: `make audit`.

    python deploy/supply/audit.py --with PROGRAM            # pip-audit, over the network
    python deploy/supply/audit.py --advisories all.zip      # a saved dump of OSV's PyPI records

Exit code 0: every pin was looked up, none is known to be vulnerable. 1: some are. 3: some could not
be looked up, so nothing is known of them. pip-audit itself answers 0 then: it calls a package that
the service did not answer for "skipped".
"""

import argparse
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from locks import ROOT, Pin, key, read_lock

LOCKS = ("run", "dev", "docs", "fuzz", "audit")


class Audit(NamedTuple):
    """What is known of the pins."""

    vulnerable: list[str]
    unknown: list[str]
    """Why a pin was not looked up."""
    looked_up: int


def pins() -> list[Pin]:
    found = {
        (pin.name, pin.version): pin
        for lock in LOCKS
        for pin in read_lock(ROOT / "requirements" / f"{lock}.txt")
    }
    return [pin for _, pin in sorted(found.items())]


def by_service(program: list[str], wanted: list[Pin]) -> Audit:
    """Ask pip-audit; what it skips is unknown."""
    given = "".join(
        f"{pin.name}=={pin.version} {' '.join(f'--hash=sha256:{one}' for one in pin.sha256)}\n"
        for pin in wanted
    )
    command = [*program, "--disable-pip", "--no-deps", "--progress-spinner", "off"]
    done = subprocess.run(
        [*command, "-f", "json", "-r", "/dev/stdin"],
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        rows: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        why = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        return Audit([], [f"{pin.name} {pin.version}: {why}" for pin in wanted], 0)
    answered = {key(row["name"]): row for row in rows if "vulns" in row}
    reasons = {key(row["name"]): row["skip_reason"] for row in rows if "skip_reason" in row}
    vulnerable = [
        f"{name} {row['version']}: {found['id']}"
        for name, row in answered.items()
        for found in row["vulns"]
    ]
    missing = (pin for pin in wanted if pin.name not in answered)
    unknown = [f"{pin.name} {pin.version}: {reasons.get(pin.name, 'no answer')}" for pin in missing]
    return Audit(vulnerable, unknown, len(answered))


def by_dump(path: Path, wanted: list[Pin]) -> Audit:
    """Look the exact versions up in records of the OSV format, without a network."""
    versions = {pin.name: pin.version for pin in wanted}
    vulnerable = []
    for record in _records(path):
        if "withdrawn" in record:
            continue
        for affected in record.get("affected", ()):
            name = key(affected.get("package", {}).get("name", ""))
            ours = affected.get("package", {}).get("ecosystem") == "PyPI" and name in versions
            if ours and versions[name] in affected.get("versions", ()):
                vulnerable.append(f"{name} {versions[name]}: {record['id']}")
    return Audit(sorted(set(vulnerable)), [], len(wanted))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    if path.is_dir():
        for file in sorted(path.glob("*.json")):
            yield json.loads(file.read_bytes())
        return
    with zipfile.ZipFile(path) as dump:
        for name in sorted(dump.namelist()):
            if name.endswith(".json"):
                yield json.loads(dump.read(name))


def tell(found: Audit) -> int:
    for line in found.vulnerable:
        print(f"vulnerable: {line}")
    if found.unknown:
        print(f"NOT AUDITED: {len(found.unknown)} packages, such as {found.unknown[0]}")
        print("The advisory service did not answer for them. Run this where it can be reached, or")
        print("with a saved dump: make audit ADVISORIES=all.zip (OSV, ecosystem PyPI).")
    print(f"{found.looked_up} packages looked up, {len(found.vulnerable)} known vulnerabilities")
    if found.vulnerable:
        return 1
    return 3 if found.unknown else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Look for known vulnerabilities of the locks.")
    parser.add_argument("--with", dest="program", default="pip-audit", help="The pip-audit to run.")
    parser.add_argument("--advisories", type=Path, help="A zip or folder of OSV records.")
    chosen = parser.parse_args()
    asked = pins()
    dump = chosen.advisories
    sys.exit(tell(by_dump(dump, asked) if dump else by_service([chosen.program], asked)))
