# SPDX-License-Identifier: Apache-2.0
"""Reads timed lines from result files, whatever tool wrote them: one dict a line and kernel, with the median of its rounds.

A line has `line`, `asked_kernel`, `key_value`, `us` and `file`. Lines of shared pages are left out: they are read from L2, which
predictions do not know. So are calls of several batches.
"""
import json
import re
from pathlib import Path
from statistics import median

# A kernel that changed after other files were written: the files that timed it as it is.
TIMED_AGAIN = {"sm90_cluster": ("h100-cluster-codes.json",), "sm90_prefill, tall": ("h100-unmasked-loop.json",),
               "sm90_decode, two heads": ("h100-head-pairs.json",), "mma_prefill": ("h100-mma-prefill.json",),
               "mma_tall": ("h100-mma-prefill.json",)}


def timed(line: str, us: float, kernel: str = "", key_value: bool = False) -> dict:
    return {"line": line, "us": us, "asked_kernel": kernel, "key_value": key_value}


def of_calls(run: dict) -> "list[dict]":
    """attend_cuda's own rows, in several turns or builds."""
    return [timed(row["line"], row["us"], row.get("asked_kernel", ""), row.get("key_value", False)) for row in run.get("results", ())
            if "us" in row and row.get("build", "now") == "now"]


def of_generic(run: dict) -> "list[dict]":
    return [timed(row["line"], row["us"], row["kernel"]) for row in run.get("cuda_generic", {}).get("results", ())]


def of_commits(run: dict) -> "list[dict]":
    """The later of two commits that took turns."""
    rows = [timed(row["line"], row["median_us"]["new"]) for row in run.get("before_after", {}).get("rows", ())]
    after = [row for row in [*run.get("results", ()), *run.get("times", ())] if "after_us" in row]
    return rows + [timed(row["line"], median(row["after_us"]) if isinstance(row["after_us"], list) else row["after_us"]) for row in after]


def of_parts(run: dict) -> "list[dict]":
    """A file of several tools' parts. Lines with a soft cap or ALiBi are left out: predictions leave out what these cost."""
    parts = [run.get(name) for name in ("turns", "wide", "generic", "masks", "caches")]
    return [timed(row["line"], row["us"] if "us" in row else row["after_us"], row.get("kernel", ""))
            for part in parts if isinstance(part, dict) for row in part.get("results", ()) if not re.search(" (cap|alibi)=", row["line"])]


def of_key_lists(run: dict) -> "list[dict]":
    """Key lists that all KV heads share are a batch of requests, with lists that were made before."""
    rows = []
    for case in run.get("cases", ()):
        if "each of" in case["reason"]:
            continue
        latent = f" dv={case['dv']} latent=1" if case["dv"] != case["d"] else ""
        page = 1 if "slots" in case["reason"] else case["page"]
        line = f"q=bf16 heads={case['heads']} d={case['d']}{latent} page={page} reqs={case['rows']}x1@{case['keys_of_a_row'] - 1}"
        rows += [timed(line, case["sparse_prepared_us"]), timed(line, case["portable_us"], "cuda_generic")]
    return rows


def of_cascade(run: dict) -> "list[dict]":
    """The two calls of a cascade, each alone: all rows on the shared keys, and each row on its own."""
    rows = []
    for case in run.get("results", ()):
        if "plain_us" not in case:
            continue
        if "share=" not in case["line"]:
            rows.append(timed(case["line"], case["plain_us"]))
        elif case["parts_us"]:
            requests, last, pages = (int(x) for x in re.search(r"reqs=(\d+)x1@(\d+) share=(\d+)", case["line"]).groups())
            start = case["line"].split(" reqs=")[0]
            page = int(re.search(r"page=(\d+)", start)[1])
            rows += [timed(f"{start} causal=0 lse=1 reqs={requests}:{pages * page}", case["parts_us"][0]),
                     timed(f"{start} lse=1 reqs={requests}x1@{last - pages * page}", case["parts_us"][1])]
    return rows


def read(path: Path) -> "list[dict]":
    run = json.loads(path.read_text(encoding="utf-8"))
    found: "dict[tuple, list[float]]" = {}
    for reader in (of_calls, of_generic, of_commits, of_parts, of_key_lists, of_cascade):
        for row in reader(run):
            found.setdefault((row["line"], row["asked_kernel"], row["key_value"]), []).append(row["us"])
    return [{**timed(line, median(us), kernel, key_value), "file": path.name} for (line, kernel, key_value), us in found.items()]


def kernel_of(one: dict) -> str:
    """The kernel of a predicted list. Tall tiles of prefill and decode's tiles of two KV heads have kernels of their own."""
    if one["served_by"] == "sm90_prefill" and one["tile_keys"] == 96:
        return one["served_by"] + ", tall"
    return one["served_by"] + (", two heads" if one["tile_heads"] == 2 else "")


def is_of_this_kernel(row: dict, lists: "list[dict]") -> bool:
    """Whether a row was timed on the kernels that serve it today, those of a prediction's lists."""
    return all(row["file"] in TIMED_AGAIN.get(kernel_of(one), (row["file"],)) for one in lists if one["items"])
