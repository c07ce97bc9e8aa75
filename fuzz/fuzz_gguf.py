# SPDX-License-Identifier: Apache-2.0
"""Coverage-guided fuzzing of the serving example's GGUF reader (atheris, libFuzzer underneath; `pip install atheris`).

    PYTHONPATH=examples/serve:examples/serve/tests python fuzz/fuzz_gguf.py -max_total_time=600 CORPUS

Any bytes must be read or refused with a GgufError; every other exception is a finding. Starts from a valid small model.
"""

import pathlib
import sys
import tempfile

import atheris

with atheris.instrument_imports(include=["gguf_file", "gguf_model", "tokenizer"]):
    import gguf_file
    import gguf_model
    import tokenizer

from gguf_builder import tiny_llama

FILE = pathlib.Path(tempfile.mkdtemp()) / "fuzzed.gguf"


def one_input(data: bytes) -> None:
    FILE.write_bytes(data)
    try:
        container = gguf_file.GgufFile(FILE)
        for info in list(container.tensors.values())[:4]:
            container.tensor(info.name, info.shape)
        tokenizer.Tokenizer(container)
        gguf_model.load_weights(container)
    except gguf_file.GgufError:
        pass


if __name__ == "__main__":
    corpus = [a for a in sys.argv[1:] if not a.startswith("-")]
    if corpus:
        pathlib.Path(corpus[0], "valid.gguf").write_bytes(tiny_llama(layers=1).build())
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
