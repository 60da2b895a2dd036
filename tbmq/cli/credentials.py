"""`tbmq credentials`: what MQTT clients must show, and what they may do."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tbmq.auth.model import ALLOW_ALL, ClientType
from tbmq.cli.credentials_csv import FileRefused, Line, make_all, read_lines
from tbmq.cli.options import (
    AsJson,
    ConfigFile,
    Overrides,
    PasswordFile,
    fail,
    in_store,
    print_rows,
    printable,
    read_password,
)
from tbmq.cli.rules import RuleCommand, RuleOptions, parse_rules, rule_text
from tbmq.storage.entities import (
    MIN_SCRAM_ITERATIONS,
    BasicProof,
    Credentials,
    CredentialsKind,
    ProviderKind,
    ScramProof,
    X509Proof,
)
from tbmq.storage.interfaces import AlreadyThere, EntityStore

app = typer.Typer(help="What MQTT clients must show, and what they may do.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the credentials, for you; unique.")]
MAX_PROBLEMS = 50  # that are shown of one file
PAGE = 1_000


@app.command(cls=RuleCommand)
def add(
    name: Name,
    kind: Annotated[
        CredentialsKind,
        typer.Option(help="basic: password; x509: certificate; scram: password that is never sent (MQTT 5)."),
    ] = CredentialsKind.BASIC,
    client_type: Annotated[ClientType, typer.Option("--type", help="Of the clients.")] = ClientType.DEVICE,
    client_id: Annotated[str, typer.Option(help="basic: only this client id.")] = "",
    username: Annotated[str, typer.Option(help="basic, scram: only this user name.")] = "",
    no_password: Annotated[bool, typer.Option("--no-password", help="basic: let in without a password.")] = False,
    password_file: PasswordFile = None,
    common_name: Annotated[str, typer.Option(help="x509: in the certificate.")] = "",
    is_regex: Annotated[bool, typer.Option("--regex", help="x509: the common name is a pattern (RE2).")] = False,
    is_whole_chain: Annotated[bool, typer.Option("--chain", help="x509: in any certificate of the chain.")] = False,
    rules: RuleOptions = None,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Add credentials. Without rules they allow everything."""
    values = {
        "name": name,
        "kind": str(kind),
        "type": str(client_type),
        "client_id": client_id,
        "username": username,
        "common_name": common_name,
        "is_regex": "yes" if is_regex else "",
        "is_whole_chain": "yes" if is_whole_chain else "",
    }
    is_asked = kind is not CredentialsKind.X509 and not no_password
    if not is_asked and password_file is not None:
        raise typer.BadParameter("--password-file does not go with --no-password and --kind x509")
    try:
        line = Line(0, values, parse_rules(rules))
        line.check()
        password = read_password(password_file, "the password") if is_asked else ""
        iterations = _scram_iterations(config_file, overrides) if line.is_scram else MIN_SCRAM_ITERATIONS
        credentials = line.make(password, iterations)
    except ValueError as error:
        raise fail(str(error)) from None
    in_store(config_file, overrides, lambda store: store.credentials.add([credentials]))
    typer.echo(f"Added {name!r} for {_asks(credentials)}. Rules, the first that applies decides:")
    for rule in credentials.rules:
        typer.echo(f"  {rule_text(rule)}")
    if credentials.rules == ALLOW_ALL:
        typer.echo("Everything is allowed, since no rule was given.")


@app.command("import")
def import_file(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.csv", help="With a line of column names; see docs/entities.md.")
    ],
    config_file: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Add credentials from a CSV file: all of them, or none when one line is wrong."""
    try:
        lines = read_lines(file)
        iterations = _scram_iterations(config_file, overrides)
        with _progress() as progress:
            task = progress.add_task("hashing passwords", total=len(lines))
            items = make_all(lines, iterations, lambda: progress.advance(task))
    except FileRefused as refused:
        raise _refuse(file, refused.problems) from None

    async def write(store: EntityStore) -> dict[int, str]:
        try:
            await store.credentials.add(items)
        except AlreadyThere as taken:
            return taken.clashes
        return {}

    clashes = in_store(config_file, overrides, write)
    if clashes:
        raise _refuse(file, {lines[place].number: reason for place, reason in clashes.items()})
    typer.echo(f"Added {len(items):,} credentials.")


def _scram_iterations(config_file: Path | None, overrides: list[str] | None) -> int:
    """As the provider wants them for new keys."""
    from tbmq.auth.scram import ScramSettings

    async def read(store: EntityStore) -> int:
        settings = {provider.kind: provider.settings for provider in await store.providers.all()}
        return ScramSettings.from_settings(settings[ProviderKind.SCRAM]).iterations

    return in_store(config_file, overrides, read)


def _progress() -> Progress:
    """On a terminal only; what goes into a file stays readable."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)


def _refuse(file: Path, problems: dict[int, str]) -> typer.Exit:
    for number, reason in sorted(problems.items())[:MAX_PROBLEMS]:
        typer.echo(f"{file}:{number}: {reason}", err=True)
    if len(problems) > MAX_PROBLEMS:
        typer.echo(f"... and {len(problems) - MAX_PROBLEMS:,} more", err=True)
    return fail(f"Nothing was added; lines of {file} that are refused: {len(problems):,}")


@app.command("list")
def list_credentials(as_json: AsJson = False, config_file: ConfigFile = None, overrides: Overrides = None) -> None:
    """Show all credentials, without what is secret."""

    async def read(store: EntityStore) -> list[Credentials]:
        items: list[Credentials] = []
        while page := await store.credentials.page(items[-1].name if items else "", PAGE):
            items += page
        return items

    items = in_store(config_file, overrides, read)
    if as_json:
        print_rows([_facts(item) for item in items], True, "")
        return
    rows = [
        {"name": item.name, "type": str(item.client_type), "asks_for": _asks(item), "rules": len(item.rules)}
        for item in items
    ]
    print_rows(rows, False, "There are no credentials.")


@app.command()
def show(name: Name, as_json: AsJson = False, config_file: ConfigFile = None, overrides: Overrides = None) -> None:
    """Show one set of credentials, without what is secret."""

    async def read(store: EntityStore) -> Credentials | None:
        return await store.credentials.find(name)

    credentials = in_store(config_file, overrides, read)
    if credentials is None:
        raise fail(f"there are no credentials {name!r}")
    facts = _facts(credentials)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    for key, value in facts.items():
        for text in value if isinstance(value, list) else [value]:
            typer.echo(f"{key:15}{printable(str(text))}")
            key = ""


@app.command(cls=RuleCommand)
def rules(name: Name, rules: RuleOptions = None, config_file: ConfigFile = None, overrides: Overrides = None) -> None:
    """Replace the rules; clients that are connected are judged by the new ones at once. None: everything is allowed."""
    try:
        parsed = parse_rules(rules)
    except ValueError as error:
        raise fail(str(error)) from None
    credentials = in_store(
        config_file, overrides, lambda store: _replace(store, name, lambda old: replace(old, rules=parsed))
    )
    typer.echo(f"Rules of {name!r}, the first that applies decides:")
    for rule in credentials.rules:
        typer.echo(f"  {rule_text(rule)}")


@app.command()
def passwd(
    name: Name, password_file: PasswordFile = None, config_file: ConfigFile = None, overrides: Overrides = None
) -> None:
    """Replace the password; clients that are connected with the old one are disconnected, their sessions stay."""
    from tbmq.auth.passwords import hash_password
    from tbmq.auth.scram import make_keys

    password = read_password(password_file, "the new password")
    iterations = _scram_iterations(config_file, overrides)

    def change(old: Credentials) -> Credentials:
        match old.proof:
            case BasicProof():
                return replace(old, proof=replace(old.proof, password_hash=hash_password(password)))
            case ScramProof(_, keys):
                made = tuple(make_keys(password, one.mechanism, iterations) for one in keys)
                return replace(old, proof=replace(old.proof, keys=made))
        raise fail(f"{name!r} asks for a certificate, not for a password")

    in_store(config_file, overrides, lambda store: _replace(store, name, change))
    typer.echo(f"{name!r} has a new password.")


async def _replace(store: EntityStore, name: str, change: Callable[[Credentials], Credentials]) -> Credentials:
    old = await store.credentials.find(name)
    if old is None:
        raise fail(f"there are no credentials {name!r}")
    new = change(old)
    await store.credentials.replace(new)
    return new


@app.command()
def remove(name: Name, config_file: ConfigFile = None, overrides: Overrides = None) -> None:
    """Remove credentials."""
    in_store(config_file, overrides, lambda store: store.credentials.remove(name))
    typer.echo(f"The credentials {name!r} are removed.")


def _facts(item: Credentials) -> dict[str, Any]:
    """Everything but secrets; of a password only whether there is one."""
    facts: dict[str, Any] = {
        "id": item.id,
        "name": item.name,
        "kind": str(item.proof.kind),
        "type": str(item.client_type),
    }
    match item.proof:
        case BasicProof(client_id, username, password_hash):
            facts |= {"client_id": client_id, "username": username, "has_password": password_hash is not None}
        case X509Proof(common_name, is_regex, is_whole_chain):
            facts |= {"common_name": common_name, "is_regex": is_regex, "is_whole_chain": is_whole_chain}
        case ScramProof(username, keys):
            facts |= {"username": username, "mechanisms": [str(one.mechanism) for one in keys]}
    created = datetime.fromtimestamp(item.created_at, UTC).isoformat()
    return facts | {"rules": [rule_text(rule) for rule in item.rules], "created": created}


def _asks(item: Credentials) -> str:
    """In words, what a client must show."""
    match item.proof:
        case BasicProof(client_id, username, password_hash):
            parts = [f"client id {client_id!r}"] if client_id is not None else []
            parts += [f"user name {username!r}"] if username is not None else []
            return " and ".join([*parts, "a password" if password_hash else "no password"])
        case X509Proof(common_name, is_regex, is_whole_chain):
            what = "a common name like" if is_regex else "the common name"
            return f"a certificate with {what} {common_name!r}{' in its chain' if is_whole_chain else ''}"
        case ScramProof(username, keys):
            return f"user name {username!r} by {' or '.join(one.mechanism for one in keys)}"
