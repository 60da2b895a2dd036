"""What the commands share: the options that choose a configuration, and how a refused one is told."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tbmq.config import ConfigError

ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="The YAML file to read.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set one key, over file and environment. Repeatable."),
]

EXIT_REFUSED = 2


@contextmanager
def exit_when_refused() -> Iterator[None]:
    """Tells everything that is wrong with the configuration, and ends the command; no traceback."""
    try:
        yield
    except ConfigError as error:
        for problem in error.problems:
            typer.echo(f"{problem.place}: {problem.reason}", err=True)
        typer.echo("The configuration is refused. `tbmq config show --describe` lists every key.", err=True)
        raise typer.Exit(EXIT_REFUSED) from None
