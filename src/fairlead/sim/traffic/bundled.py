"""The traffic scenarios that come with the package, by name."""

from functools import partial

from fairlead.sim import bundled

_HERE = "fairlead.sim.traffic"
bundled_names = partial(bundled.bundled_names, _HERE)
read_bundled = partial(bundled.read_bundled, package=_HERE)
