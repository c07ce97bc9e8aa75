# SPDX-License-Identifier: Apache-2.0
"""Times of one layer of attention in a replayed CUDA graph of eight, and of several ways that take turns."""
import statistics

LAYERS = 8


def replayed(layer):
    """A function that returns the seconds of one layer in a graph of LAYERS. layer(i % 2) attends to the i-th of two caches in turn."""
    import torch

    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(LAYERS):
            layer(i % 2)

    def run():
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / LAYERS

    run.kept = layer  # and with it what the graph writes to
    run()
    return run


def medians(ways, rounds=9):
    """Seconds of each way, which take turns."""
    times = [[] for _ in ways]
    for _ in range(rounds):
        for seconds, way in zip(times, ways):
            seconds.append(way())
    return [statistics.median(seconds) for seconds in times]
