# shellcheck shell=bash disable=SC2034
# Shared by ./test and ./run (sourced, not run): system packages, the virtual environment, short messages.
# Nothing outside the repository is changed except missing Debian/Ubuntu packages, and those only as root.

BUILD_PACKAGES=(g++ cmake ninja-build ccache libfmt-dev nlohmann-json3-dev libcli11-dev libgtest-dev libgmock-dev
                pkg-config)
VENV_PYTHON=.venv/bin/python

say() { printf '\n== %s\n' "$*"; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

package_installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

# need_packages PACKAGE...: installs what is missing, or says what to install and stops.
need_packages() {
  command -v dpkg-query >/dev/null || { say "no dpkg here; expecting the equivalents of: $*"; return 0; }
  local missing=() package
  for package in "$@"; do package_installed "$package" || missing+=("$package"); done
  [ ${#missing[@]} -eq 0 ] && return 0
  if [ "$(id -u)" -ne 0 ]; then
    die "missing packages; as root: apt-get install --no-install-recommends ${missing[*]}"
  fi
  say "apt-get install ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# want_packages PACKAGE...: installs what can be had. What cannot is skipped, and named, by the tests that would use it.
want_packages() {
  command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ] || return 0
  local missing=() package
  for package in "$@"; do package_installed "$package" || missing+=("$package"); done
  [ ${#missing[@]} -eq 0 ] && return 0
  say "apt-get install ${missing[*]} (optional)"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null || say "not available here"
}

python_has_headers() {
  "$1" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_paths()["include"] + "/Python.h"))' 2>/dev/null
}
# A Python that can hold a virtual environment and build an extension: 3.10 or newer, ensurepip, Python.h.
python_usable() {
  "$1" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && python_has_headers "$1"
}

# The first usable of python3 (pyenv, conda, ...) and the system's own; the latter gets its missing packages.
find_python() {
  local candidate
  for candidate in python3 /usr/bin/python3; do
    if python_usable "$candidate"; then PYTHON=$candidate; return 0; fi
  done
  need_packages python3 python3-dev python3-venv
  PYTHON=/usr/bin/python3
  python_usable "$PYTHON" || die "need Python >= 3.10 with venv and Python.h; $PYTHON is $("$PYTHON" --version 2>&1)"
}

need_venv() {
  if ! "$VENV_PYTHON" -m pip --version >/dev/null 2>&1; then
    find_python
    say "creating .venv with $("$PYTHON" --version)"
    rm -rf .venv
    "$PYTHON" -m venv .venv
  fi
}

# once STAMP COMMAND...: runs COMMAND unless it succeeded before for the same inputs, whose digest is read from stdin.
once() {
  local stamp=$1 digest
  shift
  digest=$(sha256sum | cut -c1-64)
  [ "$(cat "$stamp" 2>/dev/null)" = "$digest" ] && return 0
  "$@"
  mkdir -p "$(dirname "$stamp")"
  printf '%s\n' "$digest" >"$stamp"
}

# Contents of every file that the Python package is built from.
python_inputs() {
  sha256sum "$VENV_PYTHON" pyproject.toml CMakeLists.txt
  find include src python cli cmake -type f -not -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum
}
pip_install() { "$VENV_PYTHON" -m pip install --quiet --disable-pip-version-check "$@"; }

# need_python_package [PIP_ARGUMENT...]: builds and installs the quire package with its test dependencies into .venv.
need_python_package() {
  need_venv
  { python_inputs; printf '%s\n' "$@"; } | once .venv/quire-installed install_python_package "$@"
}
install_python_package() {
  "$VENV_PYTHON" -m pip uninstall --quiet --yes quire  # this package's name before it was quire-attention
  say "pip install .[test] into .venv (builds the extension module)"
  pip_install "$@" '.[test]'
}

# What examples/serve needs besides quire.
need_serving_packages() {
  sha256sum examples/serve/requirements.txt "$VENV_PYTHON" | once .venv/serving-installed install_serving_packages
}
install_serving_packages() {
  say "pip install the serving example's packages into .venv"
  pip_install -r examples/serve/requirements.txt
}

# What builds the documentation site, and drives a browser.
need_site_packages() {
  sha256sum docs/requirements.txt "$VENV_PYTHON" | once .venv/site-installed install_site_packages
}
install_site_packages() {
  say "pip install the packages of the documentation site into .venv"
  pip_install -r docs/requirements.txt
}
