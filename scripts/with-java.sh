#!/usr/bin/env bash
# Run a command with a Java that Spark 4 can use: `scripts/with-java.sh COMMAND ...`.
# Looks at JAVA_HOME, the PATH and the usual places; installs Java where it may, and says what to do where it may not.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

JAVA_MIN=17

# The major version of a java executable: 17 for "17.0.15", 8 for "1.8.0_392", nothing when it does not run.
java_major() {
  "$1" -version 2>&1 | sed -n 's/.*version "\([0-9][0-9]*\)\(\.\([0-9][0-9]*\)\)*.*/\1/p' | head -n 1
}

is_recent() {
  [ -x "$1" ] || return 1
  major="$(java_major "$1" || true)"
  [ -n "$major" ] && [ "$major" -ge "$JAVA_MIN" ]
}

# Set JAVA_HOME, if need be, so that Spark finds a fitting Java; non-zero when there is none.
find_java() {
  if [ -n "${JAVA_HOME:-}" ]; then
    is_recent "$JAVA_HOME/bin/java" && return 0
    say "JAVA_HOME ($JAVA_HOME) is not Java $JAVA_MIN or newer; looking elsewhere"
    unset JAVA_HOME
  fi
  on_path="$(command -v java || true)"
  [ -n "$on_path" ] && is_recent "$on_path" && return 0
  for home in "$HOME"/.sdkman/candidates/java/current /usr/lib/jvm/* /Library/Java/JavaVirtualMachines/*/Contents/Home \
    /opt/homebrew/opt/openjdk* /usr/local/opt/openjdk* /home/linuxbrew/.linuxbrew/opt/openjdk*; do
    if is_recent "$home/bin/java"; then
      export JAVA_HOME="$home"
      say "using the Java in $home"
      return 0
    fi
  done
  return 1
}

if ! find_java; then
  say "no Java $JAVA_MIN or newer found; installing it from the system's packages"
  install_package \
    "openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless" \
    "java-21-openjdk-headless java-17-openjdk-headless java-latest-openjdk-headless" \
    "openjdk@17 openjdk@21" || true
  find_java || die "Spark needs Java $JAVA_MIN or newer, and it could not be installed here. Install it, then try again:" \
    "Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless   (newer releases: openjdk-21-jre-headless)" \
    "Fedora:         sudo dnf install java-21-openjdk-headless" \
    "macOS:          brew install openjdk@17" \
    "anywhere:       SDKMAN (https://sdkman.io), then: sdk install java 17-tem" \
    "A Java that is already there is found through JAVA_HOME or the PATH."
fi
exec "$@"
