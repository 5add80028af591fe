"""The traffic scenarios that come with the package, by name."""

from importlib.resources import files

_SUFFIX = ".yaml"


def bundled_names() -> list[str]:
    """All names, sorted."""
    return sorted(
        entry.name.removesuffix(_SUFFIX)
        for entry in files("fairlead.sim.traffic").joinpath("scenarios").iterdir()
        if entry.name.endswith(_SUFFIX)
    )


def read_bundled(name: str) -> bytes:
    """The bytes of one; the caller has asked `bundled_names`."""
    return files("fairlead.sim.traffic").joinpath("scenarios", name + _SUFFIX).read_bytes()
