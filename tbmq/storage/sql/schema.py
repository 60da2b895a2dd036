"""The tables, the same for SQLite and PostgreSQL. `migrations/versions` makes them; a test compares the two.

    users         name*                      administrators
    credentials   id*, name!, match_key!     of MQTT clients; is_regex has an index of its own
    providers     kind*                      five rows, always
    blocked       id*, match_key!
    failures      client_id*, at             at most 10,000 rows
    settings      key*
    changes       version*                   the last 10,000 versions
    change_state  id*                        one row: the version of the last change; whoever changes locks it first

    * primary key   ! unique

`match_key` is a digest of what a row is found by, made by `match_key()`. So two credentials that ask for the same are
refused by the database itself, although their columns may be NULL, a look-up is one equality however long the client
id is, and PostgreSQL's limit on the length of indexed values is never met.

When you change a table: write the next migration, and set REVISION to its number.
"""

import hashlib
import json

import sqlalchemy as sa

REVISION = "0001"

# The order of code points in both databases, whatever the language of the server.
Ordered = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

metadata = sa.MetaData()

users = sa.Table(
    "users",
    metadata,
    sa.Column("name", Ordered, primary_key=True),
    sa.Column("password_hash", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
)

credentials = sa.Table(
    "credentials",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", Ordered, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("client_type", sa.Text, nullable=False),
    sa.Column("match_key", sa.Text, nullable=False),
    sa.Column("client_id", sa.Text),
    sa.Column("username", sa.Text),
    sa.Column("password_hash", sa.Text),
    sa.Column("common_name", sa.Text),
    sa.Column("is_regex", sa.Boolean),
    sa.Column("is_whole_chain", sa.Boolean),
    sa.Column("scram_keys", sa.JSON),
    sa.Column("rules", sa.JSON, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Index("credentials_by_name", "name", unique=True),
    sa.Index("credentials_by_match_key", "match_key", unique=True),
    sa.Index("credentials_by_is_regex", "is_regex"),
)

providers = sa.Table(
    "providers",
    metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("is_enabled", sa.Boolean, nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("settings", sa.JSON, nullable=False),
)

blocked = sa.Table(
    "blocked",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("match_key", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("value", sa.Text, nullable=False),
    sa.Column("is_regex", sa.Boolean, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("expires_at", sa.Double),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Index("blocked_by_match_key", "match_key", unique=True),
)

failures = sa.Table(
    "failures",
    metadata,
    sa.Column("client_id", Ordered, primary_key=True),
    sa.Column("username", sa.Text),
    sa.Column("ip", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Index("failures_by_time", "at"),
)

settings = sa.Table(
    "settings",
    metadata,
    sa.Column("key", Ordered, primary_key=True),
    sa.Column("value", sa.JSON, nullable=False),
)

changes = sa.Table(
    "changes",
    metadata,
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
)

change_state = sa.Table(
    "change_state",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("version", sa.BigInteger, nullable=False),
)


def match_key(*parts: str | bool | None) -> str:
    return hashlib.sha256(json.dumps(parts).encode("ascii")).hexdigest()
