"""The resources of the drill: how each is started, written with a fence (or without), and read."""

import glob
import importlib.util
import os
import pwd
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "client" / "python"))
from rowlock.fence import HEADER, header  # noqa: E402

# Seconds for a server to start.
STARTING = 60


class Refusal(Exception):
    """The resource has refused a late write."""


def run(command, text=None, refusal=None):
    """Its output. An error with the text `refusal` in it is that of a late holder."""
    said = subprocess.run(command, input=text, capture_output=True, text=True, timeout=STARTING)
    error = said.stderr + said.stdout
    if refusal is not None and refusal in error:
        if said.returncode == 0:
            raise RuntimeError(f"{command}: a script would go on after {error}")
        raise Refusal(next(line for line in error.splitlines() if refusal in line))
    if said.returncode != 0:
        raise RuntimeError(f"{command}: {said.returncode}: {error}")
    return said.stdout


def find(*patterns):
    """The first program of these, or None."""
    for pattern in patterns:
        found = shutil.which(pattern) or next(iter(sorted(glob.glob(pattern), reverse=True)), None)
        if found:
            return found
    return None


def until_answers(ask):
    """Asks until it raises nothing."""
    end = time.monotonic() + STARTING
    while True:
        try:
            return ask()
        except (RuntimeError, OSError):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


class Resource:
    """One of the drill. `address` is what `start` gave: holders are other processes."""

    def __init__(self, address):
        self.address = address

    @staticmethod
    def missing():
        """What is not installed, or None."""
        return None

    @classmethod
    def start(cls, folder, mode, lock, api):
        """The address, and the processes to end."""
        raise NotImplementedError

    def write(self, guard, body):
        """With the token of the guard; None: without a fence."""
        raise NotImplementedError

    def read(self):
        raise NotImplementedError


class Postgres(Resource):
    table, plain, script = "report", "report", "postgres-write.sql"

    @staticmethod
    def missing():
        found = find("postgres", "/usr/lib/postgresql/*/bin/postgres") and find("psql")
        return None if found else "PostgreSQL is not installed"

    @classmethod
    def start(cls, folder, mode, lock, api):
        home = Path(find("postgres", "/usr/lib/postgresql/*/bin/postgres")).resolve().parent
        user = []
        if os.geteuid() == 0:
            # It does not run as root.
            try:
                shutil.chown(folder, pwd.getpwnam("postgres").pw_uid)
            except KeyError:
                raise RuntimeError("there is no user postgres") from None
            user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]
        run(user + [f"{home}/initdb", "-D", f"{folder}/data", "-A", "trust", "-U", "drill", "--no-sync"])
        server = subprocess.Popen(
            user + [f"{home}/postgres", "-D", f"{folder}/data", "-k", str(folder), "-c", "listen_addresses=",
                    "-c", "fsync=off"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        one = cls(str(folder))
        until_answers(lambda: one.sql("SELECT 1"))
        for script in ("postgres.sql", "postgres-demo.sql"):
            one.sql((HERE / script).read_text())
        if mode == "plain":
            one.sql("DROP TRIGGER fenced ON guarded")
        return str(folder), [server]

    def sql(self, text, **variables):
        command = ["psql", "-h", self.address, "-U", "drill", "-d", "postgres", "-qAtX", "-v", "ON_ERROR_STOP=1"]
        command += ["-v", "VERBOSITY=verbose"]
        for name, value in variables.items():
            command += ["-v", f"{name}={value}"]
        return run(command, text, "RL412")

    def write(self, guard, body):
        if guard is None:
            # The strictest isolation that there is.
            update = f"UPDATE {self.table} SET body = :'body' WHERE id = 1;"
            self.sql(f"BEGIN ISOLATION LEVEL SERIALIZABLE; {update} COMMIT;", body=body)
        else:
            self.sql((HERE / self.script).read_text(), token=guard.token, body=body)

    def read(self):
        return self.sql(f"SELECT body FROM {self.table} WHERE id = 1").strip()


class PostgresTrigger(Postgres):
    table, script = "guarded", "postgres-trigger-write.sql"


class Mysql(Resource):
    table, script = "report", "mysql-write.sql"

    @staticmethod
    def missing():
        found = find("mariadbd", "/usr/sbin/mariadbd") and find("mariadb") and find("mariadb-install-db")
        return None if found else "MariaDB is not installed"

    @classmethod
    def start(cls, folder, mode, lock, api):
        # A server that starts deletes the temporary tables of others in its folder for them.
        (Path(folder) / "tmp").mkdir()
        common = ["--no-defaults", f"--datadir={folder}/data", f"--tmpdir={folder}/tmp",
                  f"--user={pwd.getpwuid(os.geteuid()).pw_name}"]
        run([find("mariadb-install-db"), *common, "--auth-root-authentication-method=normal", "--skip-test-db"])
        server = subprocess.Popen(
            [find("mariadbd", "/usr/sbin/mariadbd"), *common, f"--socket={folder}/socket", f"--pid-file={folder}/pid",
             "--skip-networking", "--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=0"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        one = cls(str(folder))
        until_answers(lambda: one.sql("CREATE DATABASE IF NOT EXISTS drill", database="mysql"))
        for script in ("mysql.sql", "mysql-demo.sql"):
            one.sql((HERE / script).read_text())
        if mode == "plain":
            one.sql("DROP TRIGGER fenced_update")
        return str(folder), [server]

    def sql(self, text, database="drill"):
        command = ["mariadb", "--no-defaults", f"--socket={self.address}/socket", "-uroot", "-BN", database]
        return run(command, text, "stale fencing token")

    def write(self, guard, body):
        if guard is None:
            update = f"UPDATE {self.table} SET body = '{body}' WHERE id = 1;"
            self.sql(f"SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; START TRANSACTION; {update} COMMIT;")
        else:
            self.sql(f"SET @token = {guard.token}, @body = '{body}';\n" + (HERE / self.script).read_text())

    def read(self):
        return self.sql(f"SELECT body FROM {self.table} WHERE id = 1").strip()


class MysqlTrigger(Mysql):
    table, script = "guarded", "mysql-trigger-write.sql"


class Redis(Resource):
    @staticmethod
    def missing():
        return None if find("redis-server") and find("redis-cli") else "Redis is not installed"

    @classmethod
    def start(cls, folder, mode, lock, api):
        server = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", f"{folder}/socket", "--dir", str(folder), "--save", ""],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        one = cls(str(folder))
        until_answers(lambda: one.cli("PING"))
        one.prepare()
        return str(folder), [server]

    def prepare(self):
        pass

    def cli(self, *words, text=None):
        return run(["redis-cli", "-e", "-s", f"{self.address}/socket", *words], text, "STALE")

    def write(self, guard, body):
        if guard is None:
            self.cli("SET", "{report}data", body)
        else:
            self.fenced(str(guard.token), body)

    def fenced(self, token, body):
        self.cli("EVAL", (HERE / "redis-write.lua").read_text(), "2", "{report}fence", "{report}data", token, body)

    def read(self):
        return self.cli("GET", "{report}data").strip()


class RedisFunction(Redis):
    @staticmethod
    def missing():
        if Redis.missing():
            return Redis.missing()
        version = run(["redis-server", "--version"]).partition("v=")[2]
        return None if int(version.partition(".")[0]) >= 7 else "Redis 7 is not installed"

    def prepare(self):
        self.cli("-x", "FUNCTION", "LOAD", text=(HERE / "redis-function.lua").read_text())

    def fenced(self, token, body):
        self.cli("FCALL", "fenced_set", "2", "{report}fence", "{report}data", token, body)


class S3(Resource):
    @staticmethod
    def missing():
        absent = [name for name in ("boto3", "moto", "flask") if importlib.util.find_spec(name) is None]
        return f"{absent[0]} is not installed" if absent else None

    @classmethod
    def start(cls, folder, mode, lock, api):
        code = ("import sys, moto.server\ns = moto.server.ThreadedMotoServer('127.0.0.1', 0, verbose=False)\n"
                "s.start()\nprint('http://%s:%d' % s.get_host_and_port(), flush=True)\nsys.stdin.read()")
        server = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                  stderr=subprocess.DEVNULL)
        url = server.stdout.readline().strip()
        cls(url).client().create_bucket(Bucket="reports")
        return url, [server]

    def client(self):
        import boto3

        return boto3.client("s3", endpoint_url=self.address, region_name="us-east-1", aws_access_key_id="drill",
                            aws_secret_access_key="drill")

    def write(self, guard, body):
        import s3_write

        if guard is None:
            self.client().put_object(Bucket="reports", Key="report", Body=body.encode())
            return
        try:
            s3_write.write(self.client(), "reports", "report", guard.token, body.encode())
        except s3_write.Stale as stale:
            raise Refusal(stale) from None

    def read(self):
        return self.client().get_object(Bucket="reports", Key="report")["Body"].read().decode()


class File(Resource):
    @staticmethod
    def missing():
        return None if find("rowlock") else "the program rowlock is not on the path"

    @classmethod
    def start(cls, folder, mode, lock, api):
        return str(folder), []

    def write(self, guard, body):
        new, report = f"{self.address}/new-{os.getpid()}", f"{self.address}/report"
        Path(new).write_text(body)
        if guard is None:
            os.rename(new, report)
        else:
            run(["rowlock", "fence", "check", report, "--token", str(guard.token), "--", "mv", new, report], None,
                "stale token")

    def read(self):
        return Path(self.address, "report").read_text()


class Http(Resource):
    @classmethod
    def start(cls, folder, mode, lock, api):
        environment = dict(os.environ, PYTHONPATH=str(HERE.parents[2] / "client" / "python"))
        server = subprocess.Popen([sys.executable, str(HERE / "service.py"), mode, lock], stdout=subprocess.PIPE,
                                  text=True, env=environment)
        return f"{server.stdout.readline().strip()} {lock}", [server]

    def write(self, guard, body):
        url, lock = self.address.split(" ")
        headers = {} if guard is None else {HEADER: header(lock, guard.token)}
        request = urllib.request.Request(url, body.encode(), headers, method="PUT")
        try:
            urllib.request.urlopen(request, timeout=STARTING).close()
        except urllib.error.HTTPError as error:
            if error.code != 412:
                raise
            raise Refusal(f"412 {error.read().decode().strip()}") from None

    def read(self):
        with urllib.request.urlopen(self.address.split(" ")[0], timeout=STARTING) as answer:
            return answer.read().decode()


class Znode(Http):
    """The same header and the same answer: without a lease, so that it is the token that is refused."""

    @classmethod
    def start(cls, folder, mode, lock, api):
        url = f"{api.split(',')[0]}/v1/znodes/fencing-{mode}-{os.getpid()}"
        urllib.request.urlopen(urllib.request.Request(url, b"", method="POST"), timeout=STARTING).close()
        return f"{url} {lock}", []


RESOURCES = {
    "postgres": Postgres, "postgres-trigger": PostgresTrigger, "mysql": Mysql, "mysql-trigger": MysqlTrigger,
    "redis": Redis, "redis-function": RedisFunction, "s3": S3, "file": File, "http": Http, "znode": Znode,
}
