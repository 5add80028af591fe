"""The scenarios that come with the package, by name: of the CPU market, or of another governor."""

from importlib.resources import files

_SUFFIX, _MARKET = ".yaml", "fairlead.sim"


def bundled_names(package: str = _MARKET) -> list[str]:
    """All names, sorted."""
    return sorted(
        entry.name.removesuffix(_SUFFIX)
        for entry in files(package).joinpath("scenarios").iterdir()
        if entry.name.endswith(_SUFFIX)
    )


def read_bundled(name: str, package: str = _MARKET) -> bytes:
    """The bytes of one; the caller has asked `bundled_names`."""
    return files(package).joinpath("scenarios", name + _SUFFIX).read_bytes()
