"""`tbmq provider`: how clients are authenticated, and in which order."""

import importlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tbmq.auth.settings import SettingsError, read_settings
from tbmq.cli.options import AsJson, ConfigFile, Overrides, fail, in_store, print_rows
from tbmq.config.model import Section
from tbmq.storage.entities import Json, Provider, ProviderKind
from tbmq.storage.interfaces import EntityStore

app = typer.Typer(help="How clients are authenticated, and in which order.", no_args_is_help=True)

Kind = Annotated[ProviderKind, typer.Argument(help="Which one.")]
HIDDEN = "********"


# Where each provider has the model of its settings: imported when asked for, since some bring much with them.
MODELS = {
    ProviderKind.BASIC: "tbmq.auth.basic:BasicSettings",
    ProviderKind.X509: "tbmq.auth.x509:X509Settings",
    ProviderKind.JWT: "tbmq.auth.jwt:JwtSettings",
    ProviderKind.HTTP: "tbmq.auth.http:HttpSettings",
    ProviderKind.SCRAM: "tbmq.auth.scram:ScramSettings",
}


def model_of(kind: ProviderKind) -> type[Section]:
    module, _, name = MODELS[kind].partition(":")
    model: type[Section] = getattr(importlib.import_module(module), name)
    return model


@app.command("list")
def list_providers(as_json: AsJson = False, config_file: ConfigFile = None, overrides: Overrides = None) -> None:
    """Show all providers in the order in which they are asked; secrets are hidden."""
    rows = []
    for provider in in_store(config_file, overrides, _read):
        settings = shown(provider)
        rows.append(
            {
                "kind": str(provider.kind),
                "is_enabled": provider.is_enabled,
                "settings": settings if as_json else [f"{key}={json.dumps(value)}" for key, value in settings.items()],
            }
        )
    print_rows(rows, as_json, "")


@app.command()
def enable(kind: Kind, config_file: ConfigFile = None, overrides: Overrides = None) -> None:
    """Ask this provider from now on. Its settings must be complete."""

    async def change(store: EntityStore) -> None:
        provider = next(provider for provider in await store.providers.all() if provider.kind is kind)
        _check(kind, provider.settings)
        await store.providers.set_enabled(kind, True)

    in_store(config_file, overrides, change)
    typer.echo(f"The provider {kind} is on.")


@app.command()
def disable(kind: Kind, config_file: ConfigFile = None, overrides: Overrides = None) -> None:
    """Ask this provider no longer."""
    in_store(config_file, overrides, lambda store: store.providers.set_enabled(kind, False))
    typer.echo(f"The provider {kind} is off.")


@app.command("set")
def set_settings(
    kind: Kind,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="A value is JSON, or else text. Secrets: KEY=file:///path."),
    ] = None,
    unset: Annotated[list[str] | None, typer.Option("--unset", metavar="KEY", help="Back to its default.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="A JSON object that replaces all settings; - is standard input."),
    ] = None,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Change settings of a provider; those not named stay."""
    if not (values or unset or file):
        raise typer.BadParameter(f"nothing to set; {kind} knows: {', '.join(model_of(kind).model_fields) or 'nothing'}")
    given = dict(map(_parse, values or []))

    async def change(store: EntityStore) -> None:
        present = {provider.kind: provider.settings for provider in await store.providers.all()}[kind]
        start = present if file is None else _read_file(file)
        settings = {key: value for key, value in start.items() if key not in (unset or [])} | given
        _check(kind, settings)
        await store.providers.set_settings(kind, settings)

    in_store(config_file, overrides, change)
    typer.echo(f"The settings of {kind} are changed.")


@app.command()
def order(
    kinds: Annotated[list[ProviderKind], typer.Argument(help="First to last; those not named follow as they were.")],
    config_file: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Say in which order providers are asked."""

    async def change(store: EntityStore) -> list[Provider]:
        await store.providers.order(kinds)
        return await store.providers.all()

    typer.echo(" ".join(provider.kind for provider in in_store(config_file, overrides, change)))


async def _read(store: EntityStore) -> list[Provider]:
    return await store.providers.all()


def shown(provider: Provider) -> dict[str, Any]:
    """What was set, with secrets hidden, as the model of the settings writes itself."""
    try:
        values = read_settings(model_of(provider.kind), provider.kind, provider.settings).model_dump(mode="json")
    except SettingsError:  # such as a file that is gone; which keys are secret is then left open
        return dict.fromkeys(provider.settings, HIDDEN)
    return {key: values[key] for key in provider.settings}


def _check(kind: ProviderKind, settings: dict[str, Json]) -> None:
    try:
        read_settings(model_of(kind), kind, settings)
    except SettingsError as error:
        raise fail(f"{error}\nNothing was changed.") from None


def _parse(text: str) -> tuple[str, Json]:
    key, separator, value = text.partition("=")
    if not (key and separator):
        raise typer.BadParameter(f"must be KEY=VALUE, got {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _read_file(file: Path) -> dict[str, Json]:
    try:
        settings = json.loads(sys.stdin.read() if str(file) == "-" else file.read_text("utf-8"))
    except OSError as error:
        raise fail(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise fail(f"{file} is not JSON: {error}") from None
    if not isinstance(settings, dict):
        raise fail(f"{file} must hold a JSON object")
    return settings
