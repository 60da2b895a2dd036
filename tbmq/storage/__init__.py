"""What outlives a process. Those above speak `interfaces` and `entities`; back ends have folders of their own.

    interfaces   what a store promises, in words; small protocols
    entities     what is kept: users, credentials, providers, blocked clients, settings; and what is refused
    sql/         the entity store on SQLite and PostgreSQL

Only those who put the program together (worker, supervisor, commands) import a back end.
"""
