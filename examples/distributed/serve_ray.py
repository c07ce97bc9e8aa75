# SPDX-License-Identifier: Apache-2.0
"""serve_tp.py on workers that Ray starts; the text is compared with that of one process.

    python examples/distributed/serve_ray.py                  two workers share the positions of every request
    python examples/distributed/serve_ray.py --workers 3      three workers share the 9 query and 3 KV heads

Ray starts the processes; torch.distributed (gloo) connects them, as under torchrun. Exit status 1 if a token differs.
"""

from __future__ import annotations

import argparse
import pathlib
import socket
import sys

FOLDER = str(pathlib.Path(__file__).resolve().parent)


class Worker:
    """One rank, in a process of Ray's."""

    def serve(self, rank: int, world: int, port: int, arguments: list[str]) -> tuple[int, str]:
        """(exit status, what serve_tp.py says) of this rank."""
        import contextlib
        import io
        import os
        import sys

        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        sys.path.insert(0, FOLDER)
        import serve_tp

        sys.argv = ["serve_tp.py", *arguments]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            status = serve_tp.main()
        return status, said.getvalue()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--max-new-tokens", type=int, default=24)
    a = parser.parse_args()
    import ray

    contexts = 1 if 3 % a.workers == 0 else a.workers  # SmolLM2's 3 KV heads divide among 1 or 3 ranks
    arguments = ["--contexts", str(contexts), "--max-new-tokens", str(a.max_new_tokens)]
    ray.init(num_cpus=a.workers, include_dashboard=False, log_to_driver=False, logging_level="error")
    workers = [ray.remote(num_cpus=1)(Worker).remote() for _ in range(a.workers)]
    port = free_port()
    ended = ray.get([worker.serve.remote(rank, a.workers, port, arguments) for rank, worker in enumerate(workers)])
    ray.shutdown()
    print("".join(said for _, said in ended), end="")
    return max(status for status, _ in ended)


if __name__ == "__main__":
    sys.exit(main())
