"""Rows of a query of a database, by SQLAlchemy. Nothing is ever written, and no password is ever shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from peerbayes.data.sources.values import check_names, one_line
from peerbayes.errors import SourceError

if TYPE_CHECKING:
    import pandas as pd
    from sqlalchemy import URL, Connection

# Databases that accept this as the first statement; on others, changes are rolled back.
READ_ONLY = "SET TRANSACTION READ ONLY"
TAKE_READ_ONLY = ("postgresql", "mysql", "mariadb", "oracle")

# What may hold a semicolon without ending a statement: quoted text and names, and comments.
COMMENT = r"--[^\n]*|/\*.*?\*/"
QUOTED = r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]"

# Words by which a row of the result may depend on several records.
MIXING = re.compile(
    r"\b(limit|fetch\s+first|top|offset|over|group\s+by|having|distinct|tablesample|random|rand|join|intersect|except)\b",
    flags=re.IGNORECASE,
)


def read_query(data: str, query: str) -> tuple[pd.DataFrame, str]:
    """Return the result of one SELECT, and the name of the database for errors."""
    check_query(query)
    url = _url(data)
    where = shown(url)
    if url.get_backend_name() == "sqlite":
        url = _read_only_file(url, where)
    with _connected(url, where) as connection:
        frame = _result(connection, query, where, url)
    return frame, where


def check_query(query: str) -> None:
    """Refuse all but a single SELECT (or WITH … SELECT)."""
    bare = _bare(query).strip().rstrip("; \n\t")
    if not re.match(r"[\s(]*(select|with)\b", bare, flags=re.IGNORECASE):
        raise SourceError(f"the query is {query.strip()!r:.80}; expected a SELECT, or WITH … SELECT")
    if ";" in bare:
        raise SourceError(f"the query is {query.strip()!r:.80}, several statements; expected a single SELECT")


def mixes_rows(query: str) -> str | None:
    """Return the first word of a query by which one record may change several rows of its result, if any."""
    match = MIXING.search(_bare(query))
    return None if match is None else " ".join(match.group().upper().split())


def _bare(query: str) -> str:
    """Return the query without comments and with empty quotes."""
    return re.sub(QUOTED, "''", re.sub(COMMENT, " ", query, flags=re.DOTALL), flags=re.DOTALL)


def shown(url: URL) -> str:
    """Return a database as errors name it: without password and options."""
    return url.set(query={}).render_as_string(hide_password=True)


def _url(data: str) -> URL:
    try:
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError
    except ImportError as error:
        raise SourceError("databases need SQLAlchemy: pip install 'peerbayes[peer]'") from error
    try:
        return make_url(data)
    except (ArgumentError, ValueError):
        # Not from the error, and not with the URL: either may hold a password.
        raise SourceError(
            f"the URL of the database ({data.partition('://')[0]}://…) cannot be read; expected one like "
            "sqlite:///rows.db or postgresql://user:password@host:5432/name, with other characters than letters and "
            "digits in the password written as %40 for @, and so on"
        ) from None


def _read_only_file(url: URL, where: str) -> URL:
    """Return the URL that opens the same SQLite file read-only: a typo then never creates an empty database."""
    database = url.database or ""
    if database.startswith("file:"):  # SQLite's own way of writing a file name
        database = database.removeprefix("file:").removeprefix("//")
        if not Path(database).exists():
            database = unquote(database)  # SQLAlchemy before 2.1 left that to us
    if database in ("", ":memory:"):
        raise SourceError(f"{where} names no file; expected one like sqlite:///rows.db")
    path = Path(database)
    if path.is_dir():
        raise SourceError(f"cannot read rows from {path}, which is a folder; name a database in it")
    if not path.exists():
        raise SourceError(
            f"cannot read rows from {path}, which does not exist; an absolute path takes four slashes: "
            "sqlite:////data/rows.db"
        )
    options = {**url.query, "mode": "ro", "uri": "true"}
    return url.set(database=f"file:{quote(str(path.resolve()))}", query=options)


def _connected(url: URL, where: str) -> Connection:
    from sqlalchemy import create_engine
    from sqlalchemy.exc import NoSuchModuleError
    from sqlalchemy.pool import NullPool

    try:
        return create_engine(url, poolclass=NullPool).connect()
    except NoSuchModuleError as error:
        raise SourceError(
            f"{where}: no database is called {url.drivername!r}; expected sqlite, postgresql, mysql, … For a file on "
            "the web, download it first"
        ) from error
    except ModuleNotFoundError as error:
        raise SourceError(f"{where} needs the package {error.name}: pip install {error.name}") from error
    except Exception as error:  # drivers raise many errors, not all of them SQLAlchemy's
        raise SourceError(f"{where} cannot be opened: {_reason(error, url)}") from None


def _result(connection: Connection, query: str, where: str, url: URL) -> pd.DataFrame:
    import pandas as pd
    from sqlalchemy.exc import SQLAlchemyError

    try:
        # As written: a colon or a percent sign in the query is no parameter.
        connection = connection.execution_options(no_parameters=True)
        if url.get_backend_name() in TAKE_READ_ONLY:
            connection.exec_driver_sql(READ_ONLY)
        result = connection.exec_driver_sql(query)
        names, rows = list(result.keys()), result.fetchall()
    except SQLAlchemyError as error:
        raise SourceError(f"the query failed on {where}: {_reason(error, url)}") from None
    check_names(names, (), f"the result of the query on {where}")
    columns: Any = zip(*rows, strict=True) if rows else [()] * len(names)
    return pd.DataFrame(
        {name: pd.Series(column, dtype=object) for name, column in zip(names, columns, strict=True)}
    )


def _reason(error: Exception, url: URL) -> str:
    """Return the driver's message, on one line and without the password."""
    message = one_line(getattr(error, "orig", None) or error)
    password = str(url.password or "")
    for secret in {password, quote(password), quote(password, safe="")} - {""}:
        message = message.replace(secret, "***")
    return message
