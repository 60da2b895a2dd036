"""The `tbmq` command: `serve` and `version` here, the others in files of their own."""

import json
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated

import typer

import tbmq
from tbmq.cli import acl, bench, blocked, config, credentials, provider, user
from tbmq.cli.options import ConfigFile, Overrides, exit_when_refused
from tbmq.config import load

app = typer.Typer(
    name="tbmq",
    help="An MQTT broker.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they print local variables, and those may hold secrets
)
app.add_typer(config.app, name="config")
app.add_typer(user.app, name="user")
app.add_typer(credentials.app, name="credentials")
app.add_typer(provider.app, name="provider")
app.add_typer(blocked.app, name="blocked")
app.add_typer(acl.app, name="acl")
app.command("bench")(bench.bench)


@app.command()
def serve(config_file: ConfigFile = None, overrides: Overrides = None) -> None:
    """Run the broker until it is told to stop."""
    with exit_when_refused():
        settings = load(config_file, overrides or [])
    from tbmq.supervisor import serve as run  # here, so that the other commands start without the broker's imports

    raise typer.Exit(run(settings))


@app.command()
def version(as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False) -> None:
    """Show what a bug report should name."""
    facts = {
        "tbmq": tbmq.__version__,
        "python": sys.version.split()[0],
        "uvloop": version_of("uvloop"),
        "core": _core(),
    }
    typer.echo(json.dumps(facts) if as_json else "\n".join(f"{name:8}{value}" for name, value in facts.items()))


def _core() -> str:
    """The compiled modules beside this package, and for which Python they were compiled."""
    suffix = EXTENSION_SUFFIXES[0]
    modules = sorted(path.name.removesuffix(suffix) for path in Path(tbmq.__file__).parent.glob(f"*{suffix}"))
    return f"{', '.join(modules)} ({suffix.split('.')[1]})" if modules else "not compiled: run ./dev build"


def main() -> None:
    app()
