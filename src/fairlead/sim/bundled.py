"""The scenarios that come with the package, by name. The files live in `scenarios/` at the root."""

from importlib.resources import files

_SUFFIX = ".yaml"


def bundled_names() -> list[str]:
    """All names, sorted."""
    return sorted(
        entry.name.removesuffix(_SUFFIX)
        for entry in files("fairlead.sim").joinpath("scenarios").iterdir()
        if entry.name.endswith(_SUFFIX)
    )


def read_bundled(name: str) -> bytes:
    """The bytes of one; the caller has asked `bundled_names`."""
    return files("fairlead.sim").joinpath("scenarios", name + _SUFFIX).read_bytes()
