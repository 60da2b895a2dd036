"""The first tables. Written out, not taken from `schema`: that one goes on, this one never changes."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

ordered = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "users",
        sa.Column("name", ordered, primary_key=True),
        sa.Column("password_hash", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
    )
    op.create_table(
        "credentials",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", ordered, nullable=False),
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
    )
    op.create_index("credentials_by_name", "credentials", ["name"], unique=True)
    op.create_index("credentials_by_match_key", "credentials", ["match_key"], unique=True)
    op.create_index("credentials_by_is_regex", "credentials", ["is_regex"])
    providers = op.create_table(
        "providers",
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("is_enabled", sa.Boolean, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
    )
    kinds = ["basic", "x509", "jwt", "http", "scram"]
    op.bulk_insert(
        providers,
        [{"kind": kind, "is_enabled": False, "position": place, "settings": {}} for place, kind in enumerate(kinds)],
    )
    op.create_table(
        "blocked",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("match_key", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.Column("is_regex", sa.Boolean, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Double),
        sa.Column("created_at", sa.Double, nullable=False),
    )
    op.create_index("blocked_by_match_key", "blocked", ["match_key"], unique=True)
    op.create_table(
        "failures",
        sa.Column("client_id", ordered, primary_key=True),
        sa.Column("username", sa.Text),
        sa.Column("ip", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )
    op.create_index("failures_by_time", "failures", ["at"])
    op.create_table(
        "settings",
        sa.Column("key", ordered, primary_key=True),
        sa.Column("value", sa.JSON, nullable=False),
    )
    op.create_table(
        "changes",
        sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
    )
    change_state = op.create_table(
        "change_state",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("version", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(change_state, [{"id": 1, "version": 0}])
