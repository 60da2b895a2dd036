"""`tbmq blocked`: clients that stay outside, whatever they show."""

import re
import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from tbmq.cli.options import AsJson, ConfigFile, Overrides, in_store, print_rows
from tbmq.storage.entities import Blocked, BlockedKind
from tbmq.storage.interfaces import EntityStore

app = typer.Typer(help="Clients that stay outside, whatever they show.", no_args_is_help=True)

UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def _parse_duration(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if found is None or int(found[1]) == 0:
        raise typer.BadParameter("must be a number and s, m, h or d, such as 90s, 10m, 12h or 30d")
    return int(found[1]) * UNITS[found[2]]


@app.command()
def add(
    kind: Annotated[BlockedKind, typer.Argument(help="By what.")],
    value: Annotated[str, typer.Argument(help="Client id, user name, address, or network such as 10.0.0.0/8.")],
    is_regex: Annotated[
        bool, typer.Option("--regex", help="VALUE is a pattern (RE2) that must match all of it.")
    ] = False,
    reason: Annotated[str, typer.Option(help="For whoever reads the list.")] = "",
    expires_in: Annotated[
        float | None,
        typer.Option(
            "--for", metavar="TIME", parser=_parse_duration, help="Such as 90s, 10m, 12h, 30d; else for good."
        ),
    ] = None,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Block clients. What is blocked already gets the new reason and time."""
    expires_at = None if expires_in is None else time.time() + expires_in
    blocked = Blocked(kind, value, is_regex, reason, expires_at)
    written = in_store(config_file, overrides, lambda store: store.blocked.put(blocked))
    until = "for good" if written.expires_at is None else f"until {_time(written.expires_at)}"
    typer.echo(f"Blocked {until}: {written.kind} {written.value!r}, id {written.id}")


@app.command("list")
def list_blocked(as_json: AsJson = False, config_file: ConfigFile = None, overrides: Overrides = None) -> None:
    """Show who is blocked."""

    async def read(store: EntityStore) -> list[Blocked]:
        return await store.blocked.all()

    now = time.time()
    rows = [
        {
            "id": item.id,
            "kind": str(item.kind),
            "value": item.value,
            "is_regex": item.is_regex,
            "reason": item.reason,
            "expires": None if item.expires_at is None else _time(item.expires_at),
            "is_expired": item.expires_at is not None and item.expires_at <= now,
        }
        for item in in_store(config_file, overrides, read)
    ]
    print_rows(rows, as_json, "Nobody is blocked.")


@app.command()
def remove(
    id: Annotated[str, typer.Argument(help="As `tbmq blocked list` shows it.")],
    config_file: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Let in again."""
    in_store(config_file, overrides, lambda store: store.blocked.remove(id))
    typer.echo(f"No longer blocked: {id}")


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
