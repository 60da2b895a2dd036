"""The entity store on SQL: a SQLite file for one machine, PostgreSQL for a cluster; one schema, one code.

store        opens it, and puts the parts together
database     connections, transactions, and what is said when they fail
schema       the tables; `migrations/` makes them, `migrate` runs those
changes      the log of changes, and how others are told
users, credentials, providers, blocked, failures, settings: one kind of entity each
"""

from tbmq.storage.sql.store import SqlEntityStore, open_entities

__all__ = ["SqlEntityStore", "open_entities"]
