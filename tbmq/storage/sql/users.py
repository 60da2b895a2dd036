"""Administrators."""

from typing import Any

import sqlalchemy as sa

from tbmq.storage.entities import ChangeKind, Role, User, check_user
from tbmq.storage.interfaces import AlreadyThere, NotThere
from tbmq.storage.sql.database import Database
from tbmq.storage.sql.schema import users


class SqlUsers:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> list[User]:
        async with self._database.read() as connection:
            rows = await connection.execute(sa.select(users).order_by(users.c.name))
            return [_user(row) for row in rows]

    async def find(self, name: str) -> User | None:
        async with self._database.read() as connection:
            row = (await connection.execute(sa.select(users).where(users.c.name == name))).one_or_none()
            return None if row is None else _user(row)

    async def add(self, user: User) -> None:
        check_user(user)
        row = {
            "name": user.name,
            "password_hash": user.password_hash,
            "role": user.role,
            "created_at": user.created_at,
        }
        async with self._database.write() as writing:
            taken = await writing.connection.execute(sa.select(users.c.name).where(users.c.name == user.name))
            if taken.first():
                raise AlreadyThere({0: f"there is a user {user.name!r} already"})
            await writing.connection.execute(sa.insert(users).values(row))
            writing.changed(ChangeKind.USER, user.name)

    async def set_password_hash(self, name: str, password_hash: str) -> None:
        check_user(User(name, password_hash))
        await self._change(name, sa.update(users).values(password_hash=password_hash))

    async def remove(self, name: str) -> None:
        await self._change(name, sa.delete(users))

    async def _change(self, name: str, statement: sa.Update | sa.Delete) -> None:
        async with self._database.write() as writing:
            done = await writing.connection.execute(statement.where(users.c.name == name))
            if not done.rowcount:
                raise NotThere(f"there is no user {name!r}")
            writing.changed(ChangeKind.USER, name)


def _user(row: sa.Row[Any]) -> User:
    return User(row.name, row.password_hash, Role(row.role), row.created_at)
