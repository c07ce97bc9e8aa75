# SPDX-License-Identifier: Apache-2.0
"""What this build has kernels for, what this machine is, and which devices :func:`quire.explain` knows by name: `quire info`."""

from quire import _quire
from quire._quire import Device, Kernel

devices = _quire.devices
gpu_devices = _quire.gpu_devices
has_backend = _quire.has_backend
host_device = _quire.host_device
kernels = _quire.kernels

__all__ = ["Device", "Kernel", "devices", "gpu_devices", "has_backend", "host_device", "kernels"]
