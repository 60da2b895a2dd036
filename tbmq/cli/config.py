"""`tbmq config check` and `tbmq config show`: what would be used, before it is used."""

import json
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
import yaml
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.table import Table

from tbmq.cli.options import ConfigFile, Overrides, exit_when_refused
from tbmq.config import Bind, build, keys, load, read_sources, unit

app = typer.Typer(help="Look at the configuration.", no_args_is_help=True)


@app.command()
def check(config_file: ConfigFile = None, overrides: Overrides = None) -> None:
    """Say whether the configuration would be taken, and where its values come from."""
    with exit_when_refused():
        sources = read_sources(config_file, overrides or [])
        build(sources)
    typer.echo("The configuration is fine. Values come from, the first one wins:")
    for source in sources:
        names = ", ".join(source.spell(key) for key in source.places)
        typer.echo(f"  {source.name}: {names or 'nothing'}")
    typer.echo("  defaults: everything else")


@app.command()
def show(
    config_file: ConfigFile = None,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    describe: Annotated[bool, typer.Option("--describe", help="Explain every key instead.")] = False,
) -> None:
    """Show the values that would be used; secrets are masked."""
    if describe:
        _show_keys(as_json)
        return
    with exit_when_refused():
        values = load(config_file, overrides or []).model_dump(mode="json")
    typer.echo(json.dumps(values, indent=2) if as_json else yaml.safe_dump(values, sort_keys=False).rstrip())


def _show_keys(as_json: bool) -> None:
    rows = [
        {
            "key": ".".join(key),
            "type": type_name(info),
            "default": _default(info),
            "unit": unit(key),
            "description": info.description or "",
        }
        for key, info in keys()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table("Key", "Value", "Meaning")
    table.columns[0].no_wrap = True
    for row in rows:
        facts = [row["type"], row["unit"], row["default"] and f"default {row['default']}"]
        table.add_row(row["key"], "\n".join(filter(None, facts)), row["description"], end_section=True)
    # On a screen as wide as the screen; in a file or pipe, where nobody has asked for a width, wide enough to read.
    console = Console()
    console = console if console.is_terminal else Console(width=120)
    console.print(table)


def _default(info: FieldInfo) -> str:
    default = info.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, SecretStr):
        return ""
    return str("" if default is None else default)


NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "integer",
    float: "number",
    str: "text",
    list: "list",
    Path: "path",
    Bind: "host:port",
    SecretStr: "secret",
}


def type_name(info: FieldInfo) -> str:
    """`integer, 1 to 65535`, `embedded or cluster`, `path`, ..."""
    kind: Any = info.annotation
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    if get_origin(kind) is UnionType:  # Bind | None is a Bind
        kind = get_args(kind)[0]
    name = NAMES[get_origin(kind) or kind]
    bounds = {name: getattr(limit, name) for limit in info.metadata for name in ("ge", "le") if hasattr(limit, name)}
    texts = {("ge", "le"): ", {ge} to {le}", ("ge",): ", at least {ge}", ("le",): ", at most {le}", (): ""}
    return name + texts[tuple(sorted(bounds))].format(**bounds)
