"""`fairlead completion`: what a shell has to evaluate to complete our commands and options."""

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, *, shell: str) -> None:
    """Print the completion script of a shell.

    \b
      eval "$(fairlead completion bash)"          # in ~/.bashrc
      eval "$(fairlead completion zsh)"           # in ~/.zshrc
      fairlead completion fish | source           # in config.fish
    """
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(found(ctx.find_root().command, {}, "fairlead", "_FAIRLEAD_COMPLETE").source())
