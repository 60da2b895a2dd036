"""`tbmq user`: administrators, who may use the admin interface."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from tbmq.cli.options import AsJson, ConfigFile, Overrides, PasswordFile, fail, in_store, print_rows, read_password
from tbmq.storage.entities import Role, User
from tbmq.storage.interfaces import EntityStore

app = typer.Typer(help="Administrators: who may look and change.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the user.")]


@app.command()
def add(
    name: Name,
    role: Annotated[Role, typer.Option(help="admin: everything; viewer: look, but not change.")] = Role.ADMIN,
    password_file: PasswordFile = None,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Add a user."""
    user = User(name, hashed(read_password(password_file, "the password")), role)
    in_store(config_file, overrides, lambda store: store.users.add(user))
    typer.echo(f"The user {name!r} can log in as {role}.")


@app.command()
def passwd(
    name: Name, password_file: PasswordFile = None, config_file: ConfigFile = None, overrides: Overrides = None
) -> None:
    """Set a new password."""
    password_hash = hashed(read_password(password_file, "the new password"))
    in_store(config_file, overrides, lambda store: store.users.set_password_hash(name, password_hash))
    typer.echo(f"The user {name!r} has a new password.")


@app.command("list")
def list_users(as_json: AsJson = False, config_file: ConfigFile = None, overrides: Overrides = None) -> None:
    """Show all users."""

    async def read(store: EntityStore) -> list[User]:
        return await store.users.all()

    rows = [
        {"name": user.name, "role": str(user.role), "created": datetime.fromtimestamp(user.created_at, UTC).isoformat()}
        for user in in_store(config_file, overrides, read)
    ]
    print_rows(rows, as_json, "There are no users.")


@app.command()
def remove(name: Name, config_file: ConfigFile = None, overrides: Overrides = None) -> None:
    """Remove a user."""
    in_store(config_file, overrides, lambda store: store.users.remove(name))
    typer.echo(f"The user {name!r} is removed.")


def hashed(password: str) -> str:
    from tbmq.auth.passwords import hash_password  # here: argon2 is slow to import

    try:
        return hash_password(password)
    except ValueError as error:
        raise fail(str(error)) from None
