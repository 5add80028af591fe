"""Documents that a machine's sudden end left damaged: the plane begins again without them."""

from pathlib import Path

import pytest

from fairlead.dataplane.envoy import EnvoyDataplane, admin, documents
from fairlead.ports.dataplane import SCHEMA_VERSION
from fairlead.ports.faults import PermanentFault
from tests.dataplane.proxy_worlds import EnvoyWorld
from tests.dataplane.tables import IDS, only, opened


@pytest.mark.parametrize("text", ["", "{", "[1]", "{}", '"x"'])
def test_a_damaged_document_is_not_there(tmp_path: Path, text: str) -> None:
    """As is one that never was."""
    path = tmp_path / "listeners.json"
    assert documents.resources(path) == []
    path.write_text(text)
    assert documents.resources(path) == []
    documents.write(path, [{"name": "web"}])
    assert documents.resources(path) == [{"name": "web"}]


@pytest.mark.parametrize("text", ["", "x"])
def test_a_damaged_version_is_that_of_nobody(tmp_path: Path, text: str) -> None:
    """Nothing runs after a machine's end, so nothing has to be agreed with."""
    (tmp_path / "schema").write_text(text)
    assert EnvoyDataplane(tmp_path).schema_version() == SCHEMA_VERSION
    (tmp_path / "schema").write_text(str(SCHEMA_VERSION + 1))
    assert EnvoyDataplane(tmp_path).schema_version() == SCHEMA_VERSION + 1


@pytest.mark.component("envoy")
def test_after_the_machines_end_the_plane_starts_with_even_splits() -> None:
    """Every document empty, as file systems leave them; nobody has to clean up by hand."""
    world = EnvoyWorld()
    try:
        group = opened(world)
        world.apply("web", only("b1"), epoch=3)
        world.kill()
        for path in world.folder.rglob("*"):
            if path.is_file() and path.suffix in {".json", ".active", ".alone", ""}:
                path.write_text("")
        world.reopen()
        assert world.plane.schema_version() == SCHEMA_VERSION
        world.plane.configure([group])
        assert set(world.send(group, 12)) == set(IDS)
        world.apply("web", only("b2"), epoch=1)
        assert set(world.send(group, 8)) == {"b2"}
    finally:
        world.close()


def test_a_document_that_is_rejected_at_once_is_a_fault_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However quick Envoy was: what counts is how many it had rejected before the write."""
    counted = {"runtime.update_rejected": "4", "runtime.version_text": "old"}
    monkeypatch.setattr(admin, "stats", lambda path, pattern: dict(counted))
    before = admin.updates(tmp_path, ["runtime"])
    counted["runtime.update_rejected"] = "5"
    with pytest.raises(PermanentFault, match="rejected runtime"):
        admin.take_up(tmp_path, {"runtime": "new"}, before)
    counted["runtime.version_text"] = "new"
    admin.take_up(tmp_path, {"runtime": "new"}, before)
