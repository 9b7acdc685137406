"""Real servers for tests: S3 (versitygw, or MinIO) and HDFS (Hadoop's minicluster).

Each takes free ports of the loopback interface and a directory of its own, which outlives
kills and restarts, and is ended by its process id. The programs are fetched by
scripts/services.sh; a server that is not there is an error, never a skipped test.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.conftest import poll

CACHE = Path(os.environ.get("WEIR_SERVICES_CACHE", Path.home() / ".cache" / "weir-services"))
HADOOP = "3.4.3"
ACCESS_KEY = "weir-tests"
SECRET_KEY = "weir-tests-canary-secret"
START_S = 90.0
STOP_S = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _needed(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there; run scripts/services.sh, which fetches the servers of the tests")
    return path


def s3_credentials() -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}


class Server:
    """A process that listens on a port, and can be killed and started again on the same data."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {}

    def is_ready(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def start(self) -> None:
        command = self.command()
        with (self.directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.directory,
                env=os.environ | self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        poll(self._up, within_s=START_S)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """At once, as when the machine goes."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        if self.process is not None:
            self.signal(signal.SIGCONT)
            self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.signal(number)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_S)
        self.process = None

    def _up(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            log = (self.directory / "server.log").read_text(errors="replace")
            raise RuntimeError(f"{type(self).__name__} ended with {self.process.returncode}:\n{log[-4000:]}")
        return self.is_ready()


class Versitygw(Server):
    """An S3 server that keeps objects as files and checks signatures and conditions."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, free_port())
        (directory / "buckets").mkdir(exist_ok=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        program = _needed(CACHE / "bin" / "versitygw")
        return [str(program), "--port", f"127.0.0.1:{self.port}", "--quiet", "posix", str(self.directory / "buckets")]

    def environment(self) -> dict[str, str]:
        return {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}

    def make_bucket(self, bucket: str) -> None:
        """What a bucket is to this server: a directory."""
        (self.directory / "buckets" / bucket).mkdir()

    def uri(self, place: str) -> str:
        """A location on this server, with all that opening it takes but the credentials."""
        return f"s3://{place}?endpoint={self.endpoint}&allow_http=true&region=us-east-1"


class Minio(Versitygw):
    """Another S3 server, stricter about multipart uploads."""

    def command(self) -> list[str]:
        program = _needed(CACHE / "bin" / "minio")
        address = f"127.0.0.1:{self.port}"
        return [str(program), "server", "--quiet", "--address", address, str(self.directory / "buckets")]

    def environment(self) -> dict[str, str]:
        off = {"MINIO_BROWSER": "off", "MINIO_UPDATE": "off", "MINIO_CALLHOME_ENABLE": "off"}
        return {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY, "HOME": str(self.directory), **off}


_LOG4J = """\
log4j.rootLogger=WARN,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c{1} %m%n
"""


class Hdfs(Server):
    """A name node and a data node in one Java process."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, free_port())
        self._web_port = free_port()
        (directory / "log4j.properties").write_text(_LOG4J)

    def command(self) -> list[str]:
        home = CACHE / f"hdfs-{HADOOP}"
        _needed(home / "complete")
        format_once = [] if (self.directory / "target").exists() else ["-format"]
        options = {
            "dfs.permissions.enabled": "false",
            "dfs.namenode.fs-limits.min-block-size": "1024",
            "hadoop.security.token.service.use_ip": "true",
        }
        return [
            str(Path(os.environ["JAVA_HOME"]) / "bin" / "java") if "JAVA_HOME" in os.environ else "java",
            *["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx384m", "--add-opens=java.base/java.lang=ALL-UNNAMED"],
            f"-Dlog4j.configuration=file://{self.directory / 'log4j.properties'}",
            *["-cp", f"{home / 'lib'}/*", "org.apache.hadoop.test.MiniDFSClusterManager", *format_once],
            *["-datanodes", "1", "-nnport", str(self.port), "-httpport", str(self._web_port)],
            *[part for key, value in options.items() for part in ("-D", f"{key}={value}")],
            *["-writeDetails", str(self._details)],
        ]

    @property
    def _details(self) -> Path:
        return self.directory / "details.json"

    def start(self) -> None:
        self._details.unlink(missing_ok=True)
        super().start()

    def is_ready(self) -> bool:
        # Written when the data node has reported for duty.
        return self._details.exists() and self._details.stat().st_size > 0 and super().is_ready()

    def uri(self, place: str) -> str:
        return f"hdfs://127.0.0.1:{self.port}/{place}"


SERVERS: dict[str, Callable[[Path], Versitygw | Hdfs]] = {"s3": Versitygw, "hdfs": Hdfs, "minio": Minio}
