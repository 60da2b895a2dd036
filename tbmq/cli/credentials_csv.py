"""Credentials from a CSV file, line by line; one line is also what `tbmq credentials add` was given.

    read_lines: every line read and checked ──▶ make_all: passwords hashed, on all cores ──▶ the store, in one change

All lines are judged before the first password is hashed, since hashing takes some 15 ms each: a mistake in the last of
ten thousand lines is told at once.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tbmq.auth.model import ClientType, Rule
from tbmq.cli.rules import parse_rules
from tbmq.storage.entities import (
    MIN_SCRAM_ITERATIONS,
    BasicProof,
    Credentials,
    CredentialsKind,
    InvalidEntity,
    Proof,
    ScramMechanism,
    ScramProof,
    X509Proof,
    check_credentials,
    check_name,
)

RULE = "rule"  # may be there many times
FLAGS = {"": False, "no": False, "false": False, "0": False, "yes": True, "true": True, "1": True}
FIELDS = {
    CredentialsKind.BASIC: {"client_id", "username", "password", "password_hash"},
    CredentialsKind.X509: {"common_name", "is_regex", "is_whole_chain"},
    CredentialsKind.SCRAM: {"username", "password"},
}
OF_ALL = {"name", "kind", "type"}
COLUMNS = sorted(OF_ALL.union({RULE}, *FIELDS.values()))


class FileRefused(Exception):
    """`problems`: numbers of lines, and what is wrong there."""

    def __init__(self, problems: dict[int, str]) -> None:
        super().__init__(f"{len(problems)} lines are refused")
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Line:
    """An empty value is one that was not given."""

    number: int
    values: dict[str, str]
    rules: tuple[Rule, ...]

    def get(self, column: str) -> str:
        return self.values.get(column, "")

    def check(self) -> None:
        """All that can be judged without hashing; InvalidEntity, in words."""
        check_name("the name of the credentials", self.get("name"))
        kind = self._kind()
        foreign = sorted(name for name, value in self.values.items() if value and name not in FIELDS[kind] | OF_ALL)
        if foreign:
            raise InvalidEntity(f"{kind} credentials have no {', '.join(foreign)}")
        self._client_type()
        if self.get("password") and self.get("password_hash"):
            raise InvalidEntity("give password or password_hash, not both")
        if self.get("password_hash"):
            from tbmq.auth.passwords import is_known_hash

            if not is_known_hash(self.get("password_hash")):
                raise InvalidEntity("password_hash is neither argon2id nor bcrypt, or costs too much to verify")
        if not self.is_scram:  # its proof needs keys first
            check_credentials(self._credentials(self._proof(None)))
        elif not self._scram_name():
            raise InvalidEntity("scram credentials need a user name")

    def make(self, password: str, iterations: int = MIN_SCRAM_ITERATIONS) -> Credentials:
        """With the password hashed, unless it is empty. ValueError says what is wrong with it."""
        if self.is_scram:
            from tbmq.auth.scram import make_keys

            keys = tuple(make_keys(password, mechanism, iterations) for mechanism in ScramMechanism)
            return self._credentials(ScramProof(self._scram_name(), keys))
        if not password:
            return self._credentials(self._proof(self.get("password_hash") or None))
        from tbmq.auth.passwords import hash_password

        return self._credentials(self._proof(hash_password(password)))

    @property
    def is_scram(self) -> bool:
        return self._kind() is CredentialsKind.SCRAM

    def _scram_name(self) -> str:
        """As clients are found by: names that look the same are the same."""
        from tbmq.auth.scram import saslprep

        try:
            return saslprep(self.get("username"), allow_unassigned=False)
        except ValueError as error:
            raise InvalidEntity(f"the user name {error}") from None

    def _proof(self, password_hash: str | None) -> Proof:
        if self._kind() is CredentialsKind.BASIC:
            return BasicProof(self.get("client_id") or None, self.get("username") or None, password_hash)
        return X509Proof(self.get("common_name"), self._flag("is_regex"), self._flag("is_whole_chain"))

    def _credentials(self, proof: Proof) -> Credentials:
        return Credentials(self.get("name"), proof, self._client_type(), self.rules)

    def _kind(self) -> CredentialsKind:
        text = self.get("kind") or CredentialsKind.BASIC
        if text not in list(CredentialsKind):
            raise InvalidEntity(f"kind must be {', '.join(CredentialsKind)}, got {text!r}")
        return CredentialsKind(text)

    def _client_type(self) -> ClientType:
        text = self.get("type") or ClientType.DEVICE
        if text not in list(ClientType):
            raise InvalidEntity(f"type must be {', '.join(ClientType)}, got {text!r}")
        return ClientType(text)

    def _flag(self, column: str) -> bool:
        text = self.get(column).lower()
        if text not in FLAGS:
            raise InvalidEntity(f"{column} must be yes or no, got {text!r}")
        return FLAGS[text]


def read_lines(file: Path) -> list[Line]:
    """FileRefused tells everything that is wrong."""
    lines: list[Line] = []
    problems: dict[int, str] = {}
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:  # spreadsheets write a byte order mark
            reader = csv.reader(text, strict=True)
            columns = _columns(next(reader, []))
            for cells in reader:
                if not any(cells):
                    continue
                try:
                    lines.append(_line(reader.line_num, columns, cells))
                except InvalidEntity as error:
                    problems[reader.line_num] = str(error)
    except OSError as error:
        raise FileRefused({0: f"cannot be read: {error.strerror}"}) from None
    except UnicodeDecodeError:
        raise FileRefused({0: "is not UTF-8 text"}) from None
    except csv.Error as error:
        problems[reader.line_num] = f"is not CSV: {error}"
    if problems:
        raise FileRefused(problems)
    return lines


def _columns(header: list[str]) -> list[str]:
    columns = [name.strip() for name in header]
    unknown = sorted(set(columns) - set(COLUMNS))
    twice = sorted({name for name in columns if name != RULE and columns.count(name) > 1})
    if unknown or twice or "name" not in columns:
        reason = (
            f"unknown column {unknown[0]!r}" if unknown else f"column {twice[0]!r} twice" if twice else "no column name"
        )
        raise FileRefused({1: f"{reason}; the first line names the columns, known are {', '.join(COLUMNS)}"})
    return columns


def _line(number: int, columns: list[str], cells: list[str]) -> Line:
    if len(cells) != len(columns):
        raise InvalidEntity(f"{len(cells)} cells, but {len(columns)} columns")
    pairs = list(zip(columns, cells, strict=True))
    rules = parse_rules([cell for name, cell in pairs if name == RULE and cell])
    line = Line(number, {name: cell for name, cell in pairs if name != RULE}, rules)
    line.check()
    return line


def make_all(lines: list[Line], iterations: int, advance: Callable[[], object]) -> list[Credentials]:
    """In the order of the lines; `advance` is called for each. FileRefused for passwords that cannot be taken."""
    items: list[Credentials] = []
    problems: dict[int, str] = {}
    # Hashing runs without the interpreter's lock, so threads use all cores.
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as threads:
        futures = [threads.submit(line.make, line.get("password"), iterations) for line in lines]
        for line, future in zip(lines, futures, strict=True):
            try:
                items.append(future.result())
            except ValueError as error:
                problems[line.number] = str(error)
            advance()
    if problems:
        raise FileRefused(problems)
    return items
