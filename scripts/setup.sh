#!/usr/bin/env bash
# Make .venv and install the package into it: `scripts/setup.sh run` or `scripts/setup.sh dev`; or .venv-plain, with what a
# user gets by `pip install` and nothing else: `scripts/setup.sh plain`.
# Called by make, which keeps a stamp; safe to call again. PYTHON names the interpreter to use.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

kind="${1:-run}"
venv=.venv
[ "$kind" = plain ] && venv=.venv-plain

is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }

find_python() {
  if [ -n "${PYTHON:-}" ]; then
    is_recent "$PYTHON" && { echo "$PYTHON"; return; }
    die "PYTHON=$PYTHON is not a working Python 3.10 or newer."
  fi
  for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
    is_recent "$candidate" && { echo "$candidate"; return; }
  done
  die "Weir needs Python 3.10 or newer and found none on the PATH." \
    "Debian, Ubuntu: sudo apt-get install python3 python3-venv" \
    "Fedora:         sudo dnf install python3" \
    "macOS:          brew install python" \
    "or name one:    make PYTHON=/path/to/python3 ..."
}

# `python -m venv` leaves half an environment behind when ensurepip is missing.
make_venv() { "$1" -m venv "$venv" >&2 || { rm -rf "$venv"; return 1; }; }

create_venv() {
  python="$1"
  say "creating $venv with $("$python" --version)"
  if "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    make_venv "$python" && return
    die "'$python -m venv $venv' failed; the reason is above."
  fi
  version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
  say "this Python has no venv module; installing it from the system's packages"
  install_package "python$version-venv python3-venv" "python3" "python" && make_venv "$python" && return
  die "Python's venv module is missing and could not be installed here." \
    "Debian, Ubuntu: sudo apt-get install python$version-venv" \
    "Fedora:         sudo dnf install python3" \
    "macOS:          brew install python" \
    "Then run the same make command again."
}

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  rm -rf "$venv"
  python="$(find_python)"
  create_venv "$python"
fi

case "$kind" in
  run) what="." ;;
  dev) what=".[dev]" ;;
  plain) what="." ;;
  *) die "usage: scripts/setup.sh run|dev|plain" ;;
esac
say "installing weir and its dependencies into $venv (the first time, this fetches Spark: several hundred MB)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip
pip_install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
if [ "$kind" = plain ]; then
  pip_install "$what"
  pip_install --force-reinstall --no-deps "$what" # the sources may have changed and the version not
else
  pip_install --editable "$what"
fi
