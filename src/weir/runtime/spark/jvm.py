"""The Java process of the embedded Spark: finding it, starting it quietly, saying why it did not start.

Comes in: Spark settings. Goes out: a running gateway for PySpark, or a ConfigError that says what to install.
Never knows about jobs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections import deque
from contextlib import suppress
from typing import Any

from weir.errors import ConfigError

JAVA_VERSION_MIN = 17

STARTUP_LINES_MAX = 50
"""Lines of the JVM's output that are kept for the error message should it fail to start."""

_BANNERS = (
    b"WARNING: Using incubator modules",
    b"Using Spark's default log4j",
    b"Setting default log level",
    b"To adjust",
)


def start_jvm(conf: Any, *, loud: bool) -> JvmOutput | None:
    """Start PySpark's JVM unless it runs already. `loud`: pass on what it writes while it starts, too."""
    from pyspark.core.context import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return None
    java = find_java()
    output = JvmOutput(loud=loud)
    try:
        gateway = launch_gateway(conf, {"stderr": output.write_end})
    except PySparkRuntimeError as error:
        raise _java_failure(java, output.close()) from error
    SparkContext._ensure_initialized(gateway=gateway)
    return output


class JvmOutput:
    """Reads what the JVM, and Python workers through it, write to standard error.

    While Spark starts, lines are only kept, for the error message. Afterwards they are passed on, without the
    banners that each JVM prints.
    """

    def __init__(self, *, loud: bool) -> None:
        self._read_end, self.write_end = os.pipe()
        self._loud = loud
        self._lines: deque[bytes] = deque(maxlen=STARTUP_LINES_MAX)
        self._thread = threading.Thread(target=self._pump, name="weir-jvm-output", daemon=True)
        self._thread.start()

    def pass_on(self) -> None:
        """Spark is up: from now on everything is for the user."""
        os.close(self.write_end)
        self._loud = True

    def close(self) -> str:
        """Spark did not start: its last words."""
        os.close(self.write_end)
        self._thread.join(timeout=1)
        return b"\n".join(self._lines).decode(errors="replace")

    def _pump(self) -> None:
        with open(self._read_end, "rb") as stream:
            for line in stream:
                self._lines.append(line.rstrip())
                if self._loud and not line.startswith(_BANNERS):
                    # Not sys.stderr: a daemon thread must not hold its lock while the interpreter shuts down.
                    with suppress(OSError):
                        os.write(2, line)


def find_java() -> str:
    """The `java` that Spark will use."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        found = f"JAVA_HOME is {home!r}, which holds no bin/java" if home else "no `java` is on the PATH"
        raise ConfigError(f"Spark needs Java {JAVA_VERSION_MIN} or newer, but {found}. {_install_hint()}")
    return java


def _java_failure(java: str, output: str) -> ConfigError:
    """Why the JVM did not start: too old, or what it said last."""
    with suppress(OSError, subprocess.SubprocessError):
        version = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
        match = re.search(r'version "(?:1\.)?(\d+)', version.stderr + version.stdout)
        if match and int(match[1]) < JAVA_VERSION_MIN:
            return ConfigError(
                f"Spark needs Java {JAVA_VERSION_MIN} or newer, but {java} is Java {match[1]}. {_install_hint()}"
            )
    return ConfigError(f"Spark's JVM ({java}) did not start. Its last words:\n{output or '(none)'}")


def _install_hint() -> str:
    return (
        f"Install it: `sudo apt-get install openjdk-{JAVA_VERSION_MIN}-jre-headless` (Debian, Ubuntu), "
        f"`sudo dnf install java-{JAVA_VERSION_MIN}-openjdk-headless` (Fedora, RHEL), "
        f"`brew install openjdk@{JAVA_VERSION_MIN}` (macOS); or set JAVA_HOME to one that is there."
    )
