"""Locks have hashes, the bill of materials has every pin, an audit says what it could not ask."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUPPLY = ROOT / "deploy" / "supply"


@pytest.fixture
def supply(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The scripts, which are no part of the package."""
    monkeypatch.syspath_prepend(str(SUPPLY))
    import audit  # noqa: PLC0415
    import locks  # noqa: PLC0415
    import sbom  # noqa: PLC0415

    return SimpleNamespace(audit=audit, locks=locks, sbom=sbom)


@pytest.mark.parametrize("lock", ["run", "dev", "docs", "fuzz", "audit"])
def test_every_pin_has_its_hashes(supply: SimpleNamespace, lock: str) -> None:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    pins = supply.locks.read_lock(ROOT / "requirements" / f"{lock}.txt")
    assert len(pins) == sum("==" in line and not line.startswith("#") for line in text.splitlines())
    assert all(pin.sha256 for pin in pins)
    assert "://" not in "".join(line for line in text.splitlines() if not line.startswith("#"))


def test_the_bill_of_materials_has_every_pin_with_its_licence(
    supply: SimpleNamespace, tmp_path: Path
) -> None:
    """From the lock and the installed metadata; the same bytes each time."""
    path = supply.sbom.write(tmp_path)
    made = json.loads(path.read_bytes())
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.5")
    pins = supply.locks.read_lock(ROOT / "requirements" / "run.txt")
    assert [row["purl"] for row in made["components"]] == [pin.purl for pin in pins]
    assert [row["name"] for row in made["components"] if not row.get("licenses")] == []
    refs = {row["bom-ref"] for row in made["components"]}
    refs.add(made["metadata"]["component"]["bom-ref"])
    needed = {ref for row in made["dependencies"] for ref in row["dependsOn"]}
    assert {row["ref"] for row in made["dependencies"]} == refs
    assert needed <= refs
    assert needed | {made["metadata"]["component"]["bom-ref"]} == refs, "each is needed by one"
    assert supply.sbom.write(tmp_path / "again").read_bytes() == path.read_bytes()


def test_another_version_than_the_locks_is_refused(supply: SimpleNamespace, tmp_path: Path) -> None:
    lock = tmp_path / "run.txt"
    lock.write_text(f"click==0.1 \\\n    --hash=sha256:{'0' * 64}\n    # via -r run.in\n")
    with pytest.raises(SystemExit, match=r"the lock has 0\.1"):
        supply.sbom.write(tmp_path, lock)
    lock.write_text("click==0.1\n")
    with pytest.raises(SystemExit, match="has no hash"):
        supply.sbom.write(tmp_path, lock)


def test_a_known_vulnerability_is_found_without_a_network(
    supply: SimpleNamespace, tmp_path: Path
) -> None:
    """In a saved dump: of our version, not withdrawn, of this ecosystem."""
    (pin, *_) = supply.audit.pins()

    def record(id: str, version: str, ecosystem: str = "PyPI", **more: str) -> dict[str, object]:
        package = {"name": pin.name.upper(), "ecosystem": ecosystem}
        return {"id": id, "affected": [{"package": package, "versions": [version]}], **more}

    dump = tmp_path / "all.zip"
    with zipfile.ZipFile(dump, "w") as file:
        for number, row in enumerate(
            [
                record("PYSEC-1", pin.version),
                record("PYSEC-2", "0.0.0"),
                record("PYSEC-3", pin.version, withdrawn="2026-01-01"),
                record("PYSEC-4", pin.version, "npm"),
            ]
        ):
            file.writestr(f"{number}.json", json.dumps(row))
    done = subprocess.run(
        [sys.executable, SUPPLY / "audit.py", "--advisories", dump],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"vulnerable: {pin.name} {pin.version}: PYSEC-1\n" in done.stdout
    assert "1 known vulnerabilities" in done.stdout


@pytest.mark.parametrize(
    ("answer", "code", "word"),
    [
        ("nothing", 3, "NOT AUDITED"),
        ('{"dependencies": []}', 3, "NOT AUDITED"),
        ("skipped", 3, "could not be audited"),
        ("good", 0, "0 known vulnerabilities"),
        ("bad", 1, "vulnerable: click"),
    ],
)
def test_what_the_service_did_not_answer_is_not_called_good(
    supply: SimpleNamespace, tmp_path: Path, answer: str, code: int, word: str
) -> None:
    """pip-audit ends with 0 where it skipped everything."""
    rows = [{"name": pin.name, "version": pin.version} for pin in supply.audit.pins()]
    texts = {
        "skipped": [{**row, "skip_reason": "could not be audited"} for row in rows],
        "good": [{**row, "vulns": []} for row in rows],
        "bad": [{**row, "vulns": [{"id": "X"}] if row["name"] == "click" else []} for row in rows],
    }
    text = json.dumps({"dependencies": texts[answer]}) if answer in texts else answer
    fake = tmp_path / "pip-audit"
    fake.write_text(f"#!/bin/sh\ncat >/dev/null\ncat {tmp_path}/answer\n")
    fake.chmod(0o755)
    (tmp_path / "answer").write_text(text)
    done = subprocess.run(
        [sys.executable, SUPPLY / "audit.py", "--with", fake],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, word in done.stdout) == (code, True), done.stdout
