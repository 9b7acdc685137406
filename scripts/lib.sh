# Helpers that the other scripts source: messages, and packages of the system.
# Works with the bash 3.2 of macOS.

say() { printf '\033[36m==>\033[0m %s\n' "$*" >&2; }

die() {
  printf '\033[31merror:\033[0m %s\n' "$1" >&2
  shift
  for line in "$@"; do printf '  %s\n' "$line" >&2; done
  exit 1
}

# Run a command as root, if that is possible without asking for a password.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    sudo -n "$@"
  else
    return 1
  fi
}

# Install the first package that the system offers; non-zero when there is none or no right to install it.
# $1: names for apt, $2: names for dnf, $3: names for brew; several names are alternatives.
install_package() {
  if command -v apt-get >/dev/null 2>&1; then
    as_root apt-get update -qq >&2 || return 1
    for package in $1; do
      as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >&2 && return 0
    done
  elif command -v dnf >/dev/null 2>&1; then
    for package in $2; do
      as_root dnf install -y -q "$package" >&2 && return 0
    done
  elif command -v brew >/dev/null 2>&1; then
    for package in $3; do
      brew install --quiet "$package" >&2 && return 0
    done
  fi
  return 1
}
