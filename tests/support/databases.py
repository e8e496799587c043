"""Private database servers for tests: each listens on a socket in its own directory, without a port.

PostgreSQL refuses to run as root, and MariaDB needs a user of its own. So root runs both as the user that their Debian
package created; any other caller runs them as itself. fsync is off: test data need not survive a power failure.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_DEADLINE_S = 60
STOP_DEADLINE_S = 30


@dataclass(frozen=True)
class Server:
    """A running server. `address(name)` is the StorageUrl of one of its databases."""

    kind: str
    directory: Path
    pid: int

    def address(self, name: str) -> str:
        if self.kind == "postgresql":
            return f"postgresql://postgres@/{name}?host={self.directory}"
        return f"mariadb://root@localhost/{name}?unix_socket={self.directory}/s"

    def create(self, name: str) -> str:
        """Create an empty database and return its address."""
        if self.kind == "postgresql":
            self._statement("postgres", f'CREATE DATABASE "{name}"')
        else:
            self._statement("mysql", f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
        return self.address(name)

    def drop(self, name: str) -> None:
        if self.kind == "postgresql":
            self._statement("postgres", f'DROP DATABASE "{name}" WITH (FORCE)')
        else:
            self._statement("mysql", f"DROP DATABASE `{name}`")

    def _statement(self, database: str, statement: str) -> None:
        if self.kind == "postgresql":
            import psycopg

            with psycopg.connect(f"host={self.directory} user=postgres dbname={database}", autocommit=True) as session:
                session.execute(statement.encode())
        else:
            import pymysql

            session = pymysql.connect(unix_socket=f"{self.directory}/s", user="root", database=database)
            try:
                session.cursor().execute(statement)
            finally:
                session.close()


@contextmanager
def postgresql_server() -> Iterator[Server]:
    """A PostgreSQL server of the newest installed release."""
    releases = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    if not releases:
        raise FileNotFoundError("no PostgreSQL server under /usr/lib/postgresql; run make setup")
    with _directory("postgres") as (directory, prefix):
        data = directory / "data"
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
        _run([*prefix, releases[-1] / "initdb", "-D", data, *options])
        settings = ("listen_addresses=", f"unix_socket_directories={directory}", "fsync=off", "full_page_writes=off")
        options = [word for setting in (*settings, "max_connections=60") for word in ("-c", setting)]
        command = [*prefix, releases[-1] / "postgres", "-D", data, *options]
        with _running(command, b"ready to accept connections", signal.SIGINT) as pid:
            yield Server("postgresql", directory, pid)


@contextmanager
def mariadb_server() -> Iterator[Server]:
    """A MariaDB server whose `root` needs no password on the private socket."""
    with _directory("mysql") as (directory, prefix):
        data = directory / "data"
        user = [f"--user={pwd.getpwuid(directory.stat().st_uid).pw_name}"]
        install = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--skip-test-db", *user]
        _run([*install, "--auth-root-authentication-method=normal"])
        command = [
            *prefix,
            "/usr/sbin/mariadbd",
            "--no-defaults",
            f"--datadir={data}",
            f"--socket={directory}/s",
            f"--pid-file={directory}/pid",
            "--skip-networking",
            "--skip-log-bin",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=256M",
            "--max-allowed-packet=64M",
        ]
        with _running(command, b"ready for connections", signal.SIGTERM) as pid:
            yield Server("mariadb", directory, pid)


@contextmanager
def _directory(user: str) -> Iterator[tuple[Path, list[str]]]:
    # Short, because the path of a socket has at most 107 bytes. Open to all, because the server runs as another user.
    directory = Path(tempfile.mkdtemp(prefix="salus-", dir="/tmp"))
    prefix: list[str] = []
    try:
        if os.geteuid() == 0:
            entry = pwd.getpwnam(user)
            os.chown(directory, entry.pw_uid, entry.pw_gid)
            prefix = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups", "--"]
        directory.chmod(0o755)
        yield directory, prefix
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run(command: Sequence[object]) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, timeout=START_DEADLINE_S, cwd="/")
    assert done.returncode == 0, f"{command[0]} failed: {done.stdout.decode()} {done.stderr.decode()}"


@contextmanager
def _running(command: Sequence[object], ready: bytes, end: signal.Signals) -> Iterator[int]:
    server = subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd="/",
    )
    output: list[bytes] = []
    is_ready = threading.Event()

    def read() -> None:
        assert server.stderr is not None
        for line in server.stderr:
            del output[:-100]
            output.append(line)
            if ready in line:
                is_ready.set()
        is_ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        has_started = is_ready.wait(START_DEADLINE_S) and any(ready in line for line in output)
        assert has_started, f"{command} did not start: {b''.join(output).decode(errors='replace')}"
        yield server.pid
    finally:
        if server.poll() is None:
            server.send_signal(end)
        try:
            server.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        reader.join(STOP_DEADLINE_S)
        assert server.stderr is not None
        server.stderr.close()
