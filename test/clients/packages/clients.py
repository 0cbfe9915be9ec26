"""Tries Python's clients on the branch of DATABASE_URL (pooled) and DIRECT_URL, as clients.mjs does."""

import asyncio
import json
import os
import ssl

PORTS = {"pooled": os.environ["DATABASE_URL"], "direct": os.environ["DIRECT_URL"]}


def dbapi(name, port, url):
    """Both speak DB-API and take the authority from PGSSLROOTCERT."""
    module = __import__(name)
    table = f"t_{name}_{port}"
    connection = module.connect(url)
    with connection, connection.cursor() as cursor:
        cursor.execute(f"create table {table} (id int primary key, name text)")
        cursor.execute(f"insert into {table} values (%s, %s)", (1, "a"))
    connection = module.connect(url)
    with connection, connection.cursor() as cursor:
        # psycopg prepares a statement on the server from its sixth use on.
        for _ in range(8):
            cursor.execute(f"select * from {table} where id = %s", (1,))
            assert len(cursor.fetchall()) == 1


async def asynchronous(port, url):
    import asyncpg

    table = f"t_asyncpg_{port}"
    context = ssl.create_default_context(cafile=os.environ.get("PGSSLROOTCERT"))
    connection = await asyncpg.connect(url, ssl=context)
    await connection.execute(f"create table {table} (id int primary key, name text)")
    await connection.execute(f"insert into {table} values ($1, $2)", 1, "a")
    for _ in range(8):
        assert len(await connection.fetch(f"select * from {table} where id = $1", 1)) == 1
    await connection.close()


def attempt(client, port, work):
    try:
        work()
        print(json.dumps({"client": client, "port": port, "all": "ok"}))
    except Exception as error:
        print(json.dumps({"client": client, "port": port, "all": f"{type(error).__name__}: {error}"}))


for port, url in PORTS.items():
    for name in ("psycopg2", "psycopg"):
        attempt(name, port, lambda: dbapi(name, port, url))
    attempt("asyncpg", port, lambda: asyncio.run(asynchronous(port, url)))
