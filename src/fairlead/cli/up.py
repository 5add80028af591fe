"""`fairlead up`: the embedded control plane, in the foreground."""

import sys
from pathlib import Path

import click

HELP = """Run the embedded control plane: one process, one ledger, a Unix socket, loopback HTTP.

Commands on this machine talk to it over the socket in DIR; who they are is what the kernel says.
Over HTTP everybody on this machine reads, and only tokens write. Ctrl-C or SIGTERM ends it; runs
go on, and the next `fairlead up` on the same DIR takes them over.

\b
  fairlead up                                  # in the state directory of this user
  fairlead up --data /srv/fairlead --port 8470
  FAIRLEAD_SERVER=/srv/fairlead/fairlead.sock fairlead get runs
"""


@click.command("up", help=HELP)
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Where everything is kept [default: the state directory; FAIRLEAD_STATE].",
)  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65535), default=8470, show_default=True,
              envvar="FAIRLEAD_PORT", help="HTTP on 127.0.0.1; 0 takes any free port.")  # fmt: skip
@click.option("--no-http", is_flag=True, help="Only the Unix socket.")
@click.option("--socket", "socket_path", type=click.Path(path_type=Path, dir_okay=False),
              help="The Unix socket [default: fairlead.sock in DIR].")  # fmt: skip
@click.option("--allow-root", is_flag=True, help="Let runs that root submits run as root.")
@click.option("--grace", "grace_s", type=click.IntRange(0, 3600), default=30, show_default=True,
              help="Seconds between SIGTERM and SIGKILL when a run is cancelled.")  # fmt: skip
def command(
    *, data: Path | None, port: int, no_http: bool, socket_path: Path | None, allow_root: bool,
    grace_s: int,
) -> None:  # fmt: skip
    """Compose the server and run it."""
    from fairlead import compose
    from fairlead.ledger.place import state_directory

    _structured_logs()
    directory = (data or state_directory()).resolve()
    config = compose.UpConfig(
        data=directory, port=None if no_http else port, allow_root=allow_root,
        grace_ms=grace_s * 1000, socket=socket_path.resolve() if socket_path else None,
    )  # fmt: skip
    with compose.control_server(config) as server:
        click.echo(f"fairlead: socket {config.socket_path}", err=True)
        if server.port is not None:
            click.echo(f"fairlead: http://127.0.0.1:{server.port}", err=True)
        server.run()
    click.echo("fairlead: stopped; runs go on", err=True)


def _structured_logs() -> None:
    """Lines for people on a terminal, JSON in a pipe."""
    import structlog

    terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=not terminal),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
