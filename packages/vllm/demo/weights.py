# SPDX-License-Identifier: Apache-2.0
"""weights.py GGUF FOLDER: the files that vLLM loads, made from a GGUF. vLLM reads no GGUF from 0.32 on; transformers does."""

import pathlib
import sys


def convert(gguf: pathlib.Path, folder: pathlib.Path) -> None:
    """The model in bf16, and its tokenizer. ``folder`` appears when it is complete."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    partial = folder.with_name(folder.name + ".partial")
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    AutoTokenizer.from_pretrained(**where).save_pretrained(partial)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True))
    model.save_pretrained(partial)
    partial.rename(folder)


if __name__ == "__main__":
    source, target = (pathlib.Path(argument) for argument in sys.argv[1:])
    if not (target / "config.json").is_file():
        convert(source, target)
