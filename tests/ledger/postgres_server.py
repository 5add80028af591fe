"""A real PostgreSQL server for the tests: its own data, on loopback, stopped again."""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairlead.host.process import free_port

START_S = 60


def binaries() -> Path | None:
    """Where the server's programs are: the newest of Debian's, else what is on PATH."""
    debian = Path("/usr/lib/postgresql")
    versions = sorted(debian.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if versions:
        return versions[-1].parent
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


def missing_postgres() -> str | None:
    """What is missing, and how to get it."""
    if binaries() is None:
        return "PostgreSQL's server is not installed (apt-get install postgresql)"
    if _account() is None:
        return "PostgreSQL refuses to run as root and there is no user postgres or nobody"
    return None


def _account() -> dict[str, Any] | None:
    """Who runs the server: we ourselves, but never root. None if there is nobody."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    return None


@contextmanager
def server() -> Iterator[str]:
    """Starts a server, yields its address, stops it, removes its data."""
    programs, account = binaries(), _account()
    assert programs is not None
    assert account is not None
    # Not below pytest's directory, which only root may enter.
    place = Path(tempfile.mkdtemp(prefix="fairlead-pg-"))
    try:
        if account:
            os.chown(place, account["user"], account["group"])
        password = secrets.token_hex(16)
        _init(programs, account, place, password)
        with _running(programs, account, place, password) as address:
            yield address
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _init(programs: Path, account: dict[str, Any], place: Path, password: str) -> None:
    secret = place / "password"
    secret.write_text(password)
    if account:
        os.chown(secret, account["user"], account["group"])
    subprocess.run(
        [
            programs / "initdb",
            "-D",
            place / "data",
            "-U",
            "fairlead",
            "-E",
            "UTF8",
            "--locale=C",
            "--auth=scram-sha-256",
            f"--pwfile={secret}",
            "--no-sync",
        ],
        check=True,
        capture_output=True,
        cwd=place,
        **account,
    )


@contextmanager
def _running(programs: Path, account: dict[str, Any], place: Path, password: str) -> Iterator[str]:
    port = free_port()
    command = [
        str(programs / "postgres"),
        "-D",
        str(place / "data"),
        "-p",
        str(port),
        "-c",
        "listen_addresses=127.0.0.1",
        "-c",
        "unix_socket_directories=",
        "-c",
        "shared_buffers=64MB",
        "-c",
        "max_connections=40",
    ]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            # A killed test run leaves no server behind.
            ["setpriv", "--pdeathsig", "INT", *command],
            stdout=log,
            stderr=log,
            cwd=place,
            **account,
        )
    address = f"postgresql://fairlead:{password}@127.0.0.1:{port}/postgres"
    try:
        _wait(address, process, place / "log")
        yield address
    finally:
        process.send_signal(signal.SIGINT)  # a fast shutdown: sessions are ended, data is synced
        process.wait(timeout=START_S)


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    import psycopg  # noqa: PLC0415 - an extra

    until = time.monotonic() + START_S
    while True:
        try:
            psycopg.connect(address).close()
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text()}") from None
            time.sleep(0.05)
        else:
            return
