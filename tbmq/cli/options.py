"""What the commands share: which configuration, how a refused one is told, and the entity store that it names."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from tbmq.config import Config, ConfigError, load

if TYPE_CHECKING:
    from tbmq.storage.interfaces import EntityStore

ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="The YAML file to read.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set one key, over file and environment. Repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file", metavar="FILE", help="Its first line is the password; - is standard input. Else it is asked."
    ),
]

EXIT_FAILED = 1  # what was asked for cannot be done
EXIT_REFUSED = 2  # the configuration, or the options

T = TypeVar("T")


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


def fail(text: str) -> typer.Exit:
    """To be raised: `raise fail("there is no such file")`."""
    typer.echo(text, err=True)
    return typer.Exit(EXIT_FAILED)


def in_store(config_file: Path | None, overrides: list[str] | None, work: "Callable[[EntityStore], Awaitable[T]]") -> T:
    """Opens the entity store of this configuration, does the work, closes it. A broker may run meanwhile."""
    with exit_when_refused():
        config = load(config_file, overrides or [])
    from tbmq.storage.entities import InvalidEntity  # here: the other commands start without a database's imports
    from tbmq.storage.interfaces import StoreError

    try:
        return asyncio.run(_run(config, work))
    except (StoreError, InvalidEntity) as error:
        raise fail(str(error)) from None


async def _run(config: Config, work: "Callable[[EntityStore], Awaitable[T]]") -> T:
    from tbmq.storage.sql import open_entities

    store = await open_entities(config)
    try:
        return await work(store)
    finally:
        await store.close()


def read_password(file: Path | None, what: str) -> str:
    """From a file, standard input, or the keyboard; never from the command line, where everybody could read it."""
    if file is None:
        if not sys.stdin.isatty():
            raise fail(f"{what} is needed: give --password-file FILE, or --password-file - for standard input")
        password: str = typer.prompt(what.capitalize(), hide_input=True, confirmation_prompt=True)
        return password
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
    except OSError as error:
        raise fail(f"the password file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise fail(f"the password file {file} is not UTF-8 text") from None
    password = text.partition("\n")[0].rstrip("\r")
    if not password:
        raise fail(f"{'standard input' if str(file) == '-' else file} has no password in its first line")
    return password


def print_rows(rows: list[dict[str, Any]], as_json: bool, nothing: str) -> None:
    """A table for people, or JSON; the keys of the first row are the columns. What is in it is shown as it is."""
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif not rows:
        typer.echo(nothing)
    else:
        table = Table(*(name.replace("_", " ").capitalize() for name in rows[0]))
        for row in rows:
            table.add_row(*(_cell(value) for value in row.values()))
        console = Console(markup=False, highlight=False)
        (console if console.is_terminal else Console(width=160, markup=False, highlight=False)).print(table)


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case list():
            return "\n".join(printable(str(item)) for item in value)
    return printable(str(value))


def printable(text: str) -> str:
    """What a stranger may have chosen must not steer the terminal."""
    return "".join(character if character.isprintable() else f"\\u{ord(character):04x}" for character in text)
