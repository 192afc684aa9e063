"""`python -m inference.bench`: how fast, in numbers that can be compared within one run on one machine.

engine runs the engine alone, serve asks a server by its address, compare puts llama.cpp's own programs beside ours,
and write-model makes a model file of any size for them to run.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference import catalog, config
from inference.bench import report, shaped_model
from inference.bench.measurement import Goodput
from inference.bench.progress import Progress
from inference.bench.workload import KINDS, Lengths, Workload, default_sampling
from inference.errors import ConfigError, InferenceError

if TYPE_CHECKING:
    from inference.bench.engine import EngineBench
    from inference.bench.serve import ServeBench

TEMPLATE_ROOM = 1024  # tokens of a conversation that a chat template may add
CELL_PADDING = 256


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m inference.bench", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    for name, sentence in (
        ("engine", "model, scheduler and sampler, without queue, web or text"),
        ("serve", "any OpenAI-compatible address: ours, llama.cpp's server, vLLM"),
        ("compare", "llama-batched-bench and llama-server beside ours, as ratios"),
    ):
        _add_common(commands.add_parser(name, help=sentence, description=sentence.capitalize() + "."), name)
    writer = commands.add_parser("write-model", help="a GGUF file of SmolLM3's shape with random weights")
    writer.add_argument("path", type=Path)
    writer.add_argument("--shape", choices=sorted(shaped_model.SHAPES), default="smollm3-3b")
    for field in fields(shaped_model.Shape):
        writer.add_argument(f"--{field.name.replace('_', '-')}", type=int, help="instead of the shape's own")
    return parser.parse_args(words)


def _add_common(parser: argparse.ArgumentParser, name: str) -> None:
    default = "1,8,16" if name == "compare" else "1,8"
    parser.add_argument("--model", default="", help="catalog name or path; for serve the name to ask for")
    parser.add_argument("--concurrency", default=default, help="streams at once, one run each (default %(default)s)")
    parser.add_argument("--prompt-tokens", default="64", help="128, 64,512 or 64-1024: new text of a prompt, about")
    parser.add_argument("--max-tokens", default="64", help="new tokens of an answer, in the same forms")
    parser.add_argument("--requests-per-stream", type=int, default=2, help="of one run, at least 4 in all (default 2)")
    for option in ("temperature", "top-p", "min-p"):
        parser.add_argument(f"--{option}", type=float, help="sampling; as llama.cpp's server does when not given")
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--seed", type=int, default=0, help="of the texts")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--plot", type=Path, help="draw them into this PNG file")
    if name != "engine":
        base = "" if name == "compare" else "http://127.0.0.1:8000/v1"
        parser.add_argument("--base-url", default=base, help="of the server; for compare of ours, to be measured too")
        parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY", ""))
    if name == "compare":
        parser.add_argument("--rounds", type=int, default=2, help="the best of so many counts (default %(default)s)")
        parser.add_argument("--systems", default="", help="only these, comma-separated: batched-bench, engine, …")
        parser.add_argument("--llama-cpp", type=Path, help="folder of built programs, instead of building them")
        parser.add_argument("--llama-cpp-source", type=Path, help="llama-cpp-python's sdist, instead of downloading it")
        return
    parser.add_argument("--requests", type=int, default=0, help="conversations of one run, instead")
    parser.add_argument("--request-rate", default="", help="open loop: Poisson arrivals per second, one run each")
    parser.add_argument("--workload", choices=KINDS, default="random", help="(default %(default)s)")
    parser.add_argument("--turns", type=int, default=8, help="of a multi-turn conversation (default %(default)s)")
    parser.add_argument("--prefix-tokens", type=int, default=512, help="that all of shared-prefix share")
    parser.add_argument("--goodput", nargs="+", default=[], metavar="NAME:MS", help="limits: ttft:500 itl:50")
    parser.add_argument("--raw", action="store_true", help="prompts without a chat template")
    parser.add_argument("--no-warm-up", dest="warm_up", action="store_false", help="measure from the first request on")
    if name == "engine":
        parser.add_argument("--sampler-threads", type=int, default=0, help="0: as a worker chooses")
    else:
        parser.add_argument(
            "--ignore-eos", action=argparse.BooleanOptionalAction, default=True, help="answers of full length"
        )


def workloads(args: argparse.Namespace) -> list[tuple[Workload, int, float]]:
    """What is run one after the other: workload, streams, arrivals per second (0: closed loop).

    Raises:
        ConfigError: an option makes no sense.
    """
    streams = _numbers(args.concurrency, "--concurrency", int)
    rates = _numbers(args.request_rate, "--request-rate", float) if args.request_rate else []
    runs = [(max(streams), rate) for rate in rates] if rates else [(number, 0.0) for number in streams]
    if min(args.turns, args.prefix_tokens, args.requests_per_stream) < 1 or args.requests < 0:
        raise ConfigError("--turns, --prefix-tokens and --requests-per-stream are at least 1, --requests at least 0.")
    # A seed of its own each, so that no run finds the prompts of an earlier one in a cache.
    return [
        (
            Workload(
                kind=args.workload,
                num_conversations=args.requests or max(4, args.requests_per_stream * number),
                prompt_tokens=Lengths.parse(args.prompt_tokens),
                max_tokens=Lengths.parse(args.max_tokens),
                turns=args.turns,
                prefix_tokens=args.prefix_tokens,
                seed=args.seed * 1000 + place,
            ),
            number,
            rate,
        )
        for place, (number, rate) in enumerate(runs)
    ]


def _numbers(text: str, option: str, kind: Callable[[str], Any]) -> list[Any]:
    try:
        numbers = [kind(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not min(numbers) > 0:
        raise ConfigError(f"{option} takes numbers above 0 with commas between them, not {text!r}.")
    return numbers


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of `engine` and `serve`."""
    runs = workloads(args)
    sampling = default_sampling(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, min_p=args.min_p)
    goodput = Goodput.parse(args.goodput)
    bench: EngineBench | ServeBench
    if args.what == "engine":
        from inference.bench.engine import EngineBench

        most = max(number for _, number, _ in runs)
        settings = engine_settings(args, runs[0][0], most)
        bench = EngineBench(settings, most, sampling=sampling, is_raw=args.raw, sampler_threads=args.sampler_threads)
    else:
        from inference.bench.serve import ServeBench

        bench = ServeBench(
            args.base_url,
            args.api_key,
            model=args.model,
            sampling=sampling,
            is_raw=args.raw,
            ignore_eos=args.ignore_eos,
        )
    rows = []
    try:
        for workload, streams, rate in runs:
            if args.warm_up:
                bench.run(workload.warm_up(streams), concurrency=streams)
            label = f"{rate:g} a second" if rate else f"{streams} streams"
            with Progress(label, workload.num_requests) as progress:
                rows.append(
                    bench.run(workload, concurrency=streams, request_rate=rate, goodput=goodput, on_done=progress.step)
                )
    finally:
        if args.what == "engine":
            bench.close()  # type: ignore[union-attr]
    return rows


def engine_settings(args: argparse.Namespace, workload: Workload, slots: int) -> config.InferenceConfig:
    """A worker's settings; where the environment is silent, just the slots and the context that are needed."""
    env = dict(os.environ)
    room = workload.longest_tokens + (1 if args.raw else TEMPLATE_ROOM)
    env.setdefault("WORKER_SLOTS", str(slots))
    env.setdefault("WORKER_CONTEXT_TOKENS", str(-(-room // CELL_PADDING) * CELL_PADDING))
    if args.model:
        env["MODEL"] = args.model
    return config.load(env)


def compare(args: argparse.Namespace) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(best rows, all rows) of ours beside llama.cpp's."""
    from inference.bench import llama_cpp
    from inference.bench.compare import SYSTEMS, Comparison
    from inference.llama import device

    settings = config.load({**os.environ, **({"MODEL": args.model} if args.model else {})})
    entry = catalog.Catalog.of(settings).entry(settings.model)
    systems = tuple(word.strip() for word in args.systems.split(",")) if args.systems else SYSTEMS
    unknown = set(systems) - set(SYSTEMS)
    if unknown:
        raise ConfigError(f"--systems takes {', '.join(SYSTEMS)}, not {', '.join(sorted(unknown))}.")
    try:
        prompt_tokens, max_tokens = int(args.prompt_tokens), int(args.max_tokens)
    except ValueError:
        raise ConfigError("compare takes one length for all prompts and one for all answers.") from None
    form = llama_cpp.RunForm(
        model=catalog.resolve(entry).path,
        concurrencies=tuple(sorted(_numbers(args.concurrency, "--concurrency", int))),
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        kv_type=settings.kv_type or entry.kv_type,
        threads=settings.threads or device.usable_cores(),
        gpu_layers=settings.gpu_layers,
    )
    programs = llama_cpp.Programs.inside(args.llama_cpp) if args.llama_cpp else llama_cpp.build(args.llama_cpp_source)
    comparison = Comparison(
        programs=programs,
        form=form,
        sampling=default_sampling(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, min_p=args.min_p),
        requests_per_stream=args.requests_per_stream,
        rounds=args.rounds,
        seed=args.seed,
        systems=systems,
        base_url=args.base_url,
        api_key=args.api_key,
        template=catalog.TEMPLATES / entry.own_template if entry.own_template else None,
    )
    return comparison.run(lambda line: print(line, file=sys.stderr, flush=True))


def write_model(args: argparse.Namespace) -> None:
    shape = shaped_model.SHAPES[args.shape]
    changes = {field.name: getattr(args, field.name) for field in fields(shape)}
    shape = replace(shape, **{name: value for name, value in changes.items() if value is not None})
    shaped_model.write(args.path, shape)
    print(f"{args.path}: {args.path.stat().st_size:,} bytes")


def main(words: list[str] | None = None) -> int:
    args = arguments(words)
    try:
        if args.what == "write-model":
            write_model(args)
            return 0
        more: dict[str, Any] = {}
        if args.what == "compare":
            rows, more["measured"] = compare(args)
        else:
            rows = measure(args)
        print(report.table(rows))
        if args.json:
            report.write_json(rows, args.json, **more)
        if args.plot:
            report.plot(rows, args.plot)
    except InferenceError as error:
        print(f"bench: {error.message}", file=sys.stderr)
        return 2
    return 1 if any(row.get("failed") for row in rows) else 0


if __name__ == "__main__":
    # Its default would leave the servers that a comparison has started behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    raise SystemExit(main())
