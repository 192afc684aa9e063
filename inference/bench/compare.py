"""Ours beside llama.cpp's own programs, in one run on one machine: same file, lengths, KV type and threads.

The systems take turns and the turns are repeated, since machines are noisy and drift; of each system and number of
streams the best round counts. Prompts are bare tokens, for batched-bench knows nothing else. With a base URL our whole
stack is measured too, and a llama-server by chat beside it, with the same template where llama.cpp can read it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.bench.llama_cpp import LlamaServer, Programs, RunForm, run_batched_bench
from inference.bench.serve import ServeBench
from inference.bench.workload import Lengths, Workload
from inference.errors import ConfigError
from inference.messages.generation import SamplingParams

BATCHED_BENCH, ENGINE, SERVER, SERVER_BS = "batched-bench", "engine", "llama-server", "llama-server-bs"
STACK, SERVER_CHAT = "whole stack", "llama-server, chat"
SYSTEMS = (BATCHED_BENCH, ENGINE, SERVER, SERVER_BS)
TEMPLATE_ROOM = 512  # tokens that a chat template may add

Rows = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared. `requests_per_stream` times the streams are sent in a run; a round takes every system once."""

    programs: Programs
    form: RunForm
    sampling: SamplingParams
    requests_per_stream: int = 2
    rounds: int = 2
    seed: int = 0
    systems: tuple[str, ...] = SYSTEMS
    base_url: str = ""
    api_key: str = ""
    template: Path | None = None

    def run(self, say: Callable[[str], None]) -> tuple[Rows, Rows]:
        """(the best of each system and number of streams, with ratios; every row that was measured)."""
        steps: dict[str, Callable[[int], Rows]] = {
            BATCHED_BENCH: lambda number: run_batched_bench(self.programs, self.form),
            ENGINE: self._engine,
            SERVER: lambda number: self._server(SERVER, number),
            SERVER_BS: lambda number: self._server(SERVER_BS, number, "-bs"),
        }
        steps = {name: step for name, step in steps.items() if name in self.systems}
        if SERVER_BS in steps and not self.programs.can_sample_on_device:
            say("This llama-server knows no -bs; it is left out.")
            del steps[SERVER_BS]
        if self.base_url:
            steps |= {STACK: self._stack, SERVER_CHAT: self._server_by_chat}
        measured: Rows = []
        for number in range(self.rounds):
            for name, step in steps.items():
                say(f"round {number + 1} of {self.rounds}: {name}")
                measured += [row | {"round": number + 1} for row in step(number)]
        return best_of(measured), measured

    def _engine(self, number: int) -> Rows:
        """In a process of its own, so that the others find the device's memory free."""
        form = self.form
        with tempfile.TemporaryDirectory() as folder:
            found = Path(folder) / "rows.json"
            command = [
                *(sys.executable, "-m", "inference.bench", "engine", "--raw", "--model", str(form.model)),
                *("--concurrency", ",".join(map(str, form.concurrencies)), "--seed", str(self.seed + number)),
                *("--prompt-tokens", str(form.prompt_tokens), "--max-tokens", str(form.max_tokens)),
                *("--requests-per-stream", str(self.requests_per_stream), "--json", str(found)),
            ]
            for name in ("temperature", "top_k", "top_p", "min_p"):
                command += [f"--{name.replace('_', '-')}", str(getattr(self.sampling, name))]
            env = {**os.environ, "WORKER_KV_TYPE": form.kv_type, "WORKER_THREADS": str(form.threads)}
            env["WORKER_GPU_LAYERS"] = str(form.gpu_layers)
            done = subprocess.run(command, env=env, capture_output=True, text=True)
            if not found.is_file():
                raise ConfigError(f"The engine's run failed: {(done.stderr or done.stdout)[-2000:]}")
            rows: Rows = json.loads(found.read_text(encoding="utf-8"))["rows"]
        return [row | {"system": ENGINE} for row in rows]

    def _server(self, name: str, number: int, *options: str) -> Rows:
        with LlamaServer(self.programs, self.form, *options) as server:
            bench = ServeBench(server.base_url, sampling=self.sampling, is_raw=True)
            return self._serve(bench, name, number, words_less=0)

    def _server_by_chat(self, number: int) -> Rows:
        options = ("--jinja", "--chat-template-file", str(self.template)) if self.template else ()
        with LlamaServer(self.programs, self.form.wider(TEMPLATE_ROOM), *options) as server:
            bench = ServeBench(server.base_url, sampling=self.sampling)
            return self._serve(bench, SERVER_CHAT, number, words_less=bench.template_tokens())

    def _stack(self, number: int) -> Rows:
        bench = ServeBench(self.base_url, self.api_key, sampling=self.sampling)
        return self._serve(bench, STACK, number, words_less=bench.template_tokens())

    def _serve(self, bench: ServeBench, name: str, number: int, *, words_less: int) -> Rows:
        rows = []
        for place, streams in enumerate(self.form.concurrencies):
            workload = Workload(
                num_conversations=max(4, self.requests_per_stream * streams),
                prompt_tokens=Lengths.fixed(self.form.prompt_tokens),
                max_tokens=Lengths.fixed(self.form.max_tokens),
                words_less=words_less,
                seed=(self.seed + number) * 1000 + place,
            )
            bench.run(workload.warm_up(streams), concurrency=streams)
            rows.append(bench.run(workload, concurrency=streams) | {"system": name})
        return rows


def best_of(measured: Rows) -> Rows:
    """Of each system and number of streams the round with the most new tokens a second, and ours as ratios.

    `ratio_to_batched_bench` and `ratio_to_llama_server` are of new tokens per second, prefill included; the whole
    stack is held against the llama-server that was asked by chat.
    """
    best: dict[tuple[str, int], dict[str, Any]] = {}
    for row in measured:
        key = row["system"], row["concurrency"]
        if key not in best or row["output_throughput"] > best[key]["output_throughput"]:
            best[key] = row
    rows = [dict(row) for row in best.values()]
    for row in rows:
        streams, mine = row["concurrency"], row["output_throughput"]
        plain = SERVER_CHAT if row["system"] in (STACK, SERVER_CHAT) else SERVER
        for name, other in (("batched_bench", BATCHED_BENCH), ("llama_server", plain)):
            theirs = best.get((other, streams))
            if theirs is not None and row["system"] != other and theirs["output_throughput"]:
                row[f"ratio_to_{name}"] = mine / theirs["output_throughput"]
    order = [*SYSTEMS, STACK, SERVER_CHAT]
    return sorted(rows, key=lambda row: (row["concurrency"], order.index(row["system"])))
