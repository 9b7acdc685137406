#!/usr/bin/env bash
# Fetch the servers that tests/services starts, once, by package name: `scripts/services.sh [s3] [minio] [hdfs]` (default:
# s3 and hdfs). They are kept outside the checkout, in WEIR_SERVICES_CACHE (~/.cache/weir-services); safe to call again.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

CACHE="${WEIR_SERVICES_CACHE:-$HOME/.cache/weir-services}"
VERSITYGW=github.com/versity/versitygw/cmd/versitygw@v1.8.0
MINIO=github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c
HADOOP=3.4.3

need() { # command, what for, then lines on how to get it
  command -v "$1" >/dev/null 2>&1 && return
  command="$1"; what="$2"; shift 2
  die "$what needs '$command', which is not on the PATH. Install it, then try again:" "$@"
}

# Build a Go program into $CACHE/bin; it appears there whole or not at all.
go_program() { # name, package
  [ -x "$CACHE/bin/$1" ] && return
  need go "building $1" "Go 1.24 or newer: https://go.dev/dl" "macOS: brew install go"
  say "building $1 from $2 (some minutes, once)"
  mkdir -p "$CACHE/bin" "$CACHE/partial"
  GOBIN="$CACHE/partial" go install "$2"
  mv "$CACHE/partial/$1" "$CACHE/bin/$1"
}

hdfs() {
  [ -e "$CACHE/hdfs-$HADOOP/complete" ] && return
  need mvn "fetching HDFS" "Debian, Ubuntu: sudo apt-get install maven" "Fedora: sudo dnf install maven" "macOS: brew install maven"
  say "fetching Hadoop's minicluster $HADOOP (about 100 MB, once)"
  mkdir -p "$CACHE/hdfs-$HADOOP"
  cat > "$CACHE/hdfs-$HADOOP/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>weir</groupId><artifactId>hdfs-for-tests</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.hadoop</groupId><artifactId>hadoop-minicluster</artifactId><version>$HADOOP</version></dependency>
    <dependency><groupId>junit</groupId><artifactId>junit</artifactId><version>4.13.2</version></dependency>
    <dependency><groupId>org.mockito</groupId><artifactId>mockito-core</artifactId><version>4.11.0</version></dependency>
  </dependencies>
</project>
POM
  mvn -q -B -f "$CACHE/hdfs-$HADOOP/pom.xml" dependency:copy-dependencies \
    -DoutputDirectory="$CACHE/hdfs-$HADOOP/lib" -DincludeScope=runtime >&2
  touch "$CACHE/hdfs-$HADOOP/complete"
}

[ $# -gt 0 ] || set -- s3 hdfs
for service in "$@"; do
  case "$service" in
    s3) go_program versitygw "$VERSITYGW" ;;
    minio) go_program minio "$MINIO" ;;
    hdfs) hdfs ;;
    *) die "usage: scripts/services.sh [s3] [minio] [hdfs]" ;;
  esac
done
