"""`python -m inference.bench engine|serve`: how fast, in numbers that can be compared within one run on one machine."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from inference import config
from inference.bench import report
from inference.bench.workload import Workload


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m inference.bench", description=__doc__)
    parser.add_argument("what", choices=("engine", "serve"), help="the engine alone, or a server by its address")
    parser.add_argument("--model", default="", help="catalog name or path (engine); model name to ask for (serve)")
    parser.add_argument("--concurrency", default="1,8", help="streams at once, one run each (default %(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=64, help="length of a prompt, about (default %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=64, help="new tokens of an answer (default %(default)s)")
    parser.add_argument("--requests", type=int, default=0, help="of one run; 0: twice the streams, at least 4")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1", help="serve only (default %(default)s)")
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY", ""), help="serve only")
    parser.add_argument(
        "--request-rate", type=float, default=0.0, help="serve only: Poisson arrivals per second; 0: closed loop"
    )
    return parser.parse_args()


class Progress:
    """One line that counts, on a terminal only."""

    def __init__(self, label: str, total: int) -> None:
        self._label, self._total, self._done = label, total, 0

    def step(self) -> None:
        self._done += 1
        if sys.stderr.isatty():
            end = "\n" if self._done == self._total else ""
            print(f"\r{self._label}: {self._done} of {self._total}", end=end, file=sys.stderr, flush=True)


def rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    concurrencies = [int(word) for word in args.concurrency.split(",")]
    # A prompt of its own seed each, so that no run finds the prompts of an earlier one in the prefix cache.
    workloads = [
        Workload(
            model=args.model,
            num_requests=args.requests or max(4, 2 * streams),
            prompt_tokens=args.prompt_tokens,
            max_tokens=args.max_tokens,
            seed=args.seed * 1000 + number,
        )
        for number, streams in enumerate(concurrencies)
    ]
    found = []
    if args.what == "engine":
        from inference.bench.engine import EngineBench  # loads llama.cpp, which `serve` must not need

        env = dict(os.environ)
        env.setdefault("WORKER_SLOTS", str(max(concurrencies)))
        if args.model:
            env["MODEL"] = args.model
        bench = EngineBench(config.load(env), max(concurrencies))
        try:
            for streams, workload in zip(concurrencies, workloads):
                found.append(bench.run(workload, streams, Progress(f"{streams} streams", workload.num_requests).step))
        finally:
            bench.close()
    else:
        from inference.bench.serve import ServeBench

        server = ServeBench(args.base_url, args.api_key)
        for streams, workload in zip(concurrencies, workloads):
            done = Progress(f"{streams} streams", workload.num_requests).step
            found.append(server.run(workload, streams, args.request_rate, done))
    return found


def main() -> int:
    args = arguments()
    found = rows(args)
    print(report.table(found))
    if args.json:
        report.write_json(found, args.json)
    return 1 if any(row["failed"] for row in found) else 0


if __name__ == "__main__":
    raise SystemExit(main())
