# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
# Shared by ./test and ./run (sourced, not run): system packages, the virtual environment, short messages.
# Nothing outside the repository is changed except missing Debian/Ubuntu packages, and those only as root.

BUILD_PACKAGES=(g++ cmake ninja-build ccache libfmt-dev nlohmann-json3-dev libcli11-dev libgtest-dev libgmock-dev
                pkg-config)
RUN_PACKAGES=(g++ cmake ninja-build ccache libfmt-dev nlohmann-json3-dev)
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
  apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    die "apt could not install ${missing[*]}; the first time needs the network"
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
  if ! "$VENV_PYTHON" -c 'import pip' >/dev/null 2>&1; then
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
  "$@" || return  # also where the shell does not stop by itself, as before a ||
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
  "$VENV_PYTHON" -m pip uninstall -qq --yes quire  # this package's name before it was quire-attention
  say "pip install .[test] into .venv (builds the extension module)"
  pip_install "$@" '.[test]'
}

# want_mpi: mpi4py and a launcher, as wheels, into .venv. Tests of ranks that are MPI processes name what they miss without them.
want_mpi() {
  printf '%s\n' mpi4py mpich | once .venv/mpi-installed pip_install mpi4py mpich || say "MPI is not available here"
}

# show_progress WHAT: ninja's lines "[done/total] ..." from stdin as one bar; without a terminal, a line for each quarter.
show_progress() {
  local line last=0 started=$SECONDS columns room filled
  while IFS= read -r line; do
    [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]] || continue
    local finished=${BASH_REMATCH[1]} total=${BASH_REMATCH[2]}
    if [ -t 1 ]; then
      columns=$(stty size </dev/tty 2>/dev/null | cut -d' ' -f2)
      room=$((${columns:-80} - ${#1} - 24))
      room=$((room < 5 ? 5 : room > 50 ? 50 : room))
      filled=$((room * finished / total))
      printf '\r%s %s%s %d/%d, %d s \033[K' "$1" "$(printf '%*s' "$filled" '' | tr ' ' '#')" \
        "$(printf '%*s' $((room - filled)) '' | tr ' ' '.')" "$finished" "$total" $((SECONDS - started))
    elif [ $((4 * finished / total)) -gt "$last" ]; then
      last=$((4 * finished / total))
      printf '%s %d/%d, %d s\n' "$1" "$finished" "$total" $((SECONDS - started))
    fi
  done
  if [ -t 1 ]; then printf '\n'; fi
}

# Quire with attention, contract and reference only, for this machine's CPU: build/run/site/quire. Packages and the model that
# examples/serve needs are fetched meanwhile.
need_attention() {
  need_venv
  mkdir -p build/run
  sha256sum "$VENV_PYTHON" | once .venv/nanobind-installed install_nanobind
  fetch_for_serving >build/run/fetch.log 2>&1 &
  local fetching=$!
  python_inputs | once build/run/built build_attention
  wait "$fetching" || die "$(grep -v '^ ' build/run/fetch.log | tail -n 1)
The first ./run needs the network for Python packages and the model (93 MB); build/run/fetch.log has more."
  printf '%s\n' "$PWD/build/run/site" >"$("$VENV_PYTHON" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/quire-run.pth"
}
install_nanobind() {
  pip_install 'nanobind>=2.4' >build/run/pip.log 2>&1 ||
    die "pip could not fetch nanobind from PyPI; the first ./run needs the network (build/run/pip.log has more)"
}
fetch_for_serving() {
  need_serving_packages && "$VENV_PYTHON" examples/serve/gguf_model.py
}
build_attention() {
  say "Quire's attention is compiled for this CPU: about a minute on two cores, once"
  local log=build/run/build.log
  cmake -G Ninja -S . -B build/run -DCMAKE_BUILD_TYPE=Release -DQUIRE_TOOLS=OFF -DQUIRE_BUILD_PYTHON=ON -DQUIRE_BUILD_CLI=OFF \
    -DQUIRE_CUDA=OFF -DQUIRE_HIP=OFF -DPython_EXECUTABLE="$PWD/$VENV_PYTHON" >"$log" 2>&1 || { cat "$log"; die "cmake failed"; }
  NINJA_STATUS='[%f/%t] ' cmake --build build/run --target _quire 2>&1 | tee "$log" | show_progress compiling ||
    { cat "$log"; die "compiling failed"; }
  rm -rf build/run/site
  mkdir -p build/run/site
  cp -r python/quire build/run/site/
  cp build/run/python/_quire*.so build/run/site/quire/
}

# Requirements of examples/serve besides quire.
need_serving_packages() {
  sha256sum examples/serve/requirements.txt "$VENV_PYTHON" | once .venv/serving-installed install_serving_packages
}
install_serving_packages() {
  say "pip install the serving example's packages into .venv"
  pip_install -r examples/serve/requirements.txt
}

# Tools that build the documentation site and drive a browser.
need_site_packages() {
  sha256sum docs/requirements.txt "$VENV_PYTHON" | once .venv/site-installed install_site_packages
}
install_site_packages() {
  say "pip install the packages of the documentation site into .venv"
  pip_install -r docs/requirements.txt
}
