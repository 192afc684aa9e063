"""What the benchmark sends, how it computes, and what it writes. No model, no server."""

from __future__ import annotations

import json
import random
from array import array
from pathlib import Path
from typing import Any

import pytest

from inference.bench import report
from inference.bench.__main__ import arguments, main, workloads
from inference.bench.compare import best_of
from inference.bench.llama_cpp import Programs, RunForm, parse_batched_bench
from inference.bench.measurement import Goodput, RequestTimes, peak_in_flight, percentile, summarize
from inference.bench.progress import Progress
from inference.bench.workload import Conversation, Lengths, Workload
from inference.errors import ConfigError


def workload(**changes: Any) -> Workload:
    settings: dict[str, Any] = {
        "num_conversations": 6,
        "prompt_tokens": Lengths.parse("8-32"),
        "max_tokens": Lengths.parse("4,16"),
    }
    return Workload(**{**settings, **changes})


def times(sent_at: float, *pieces: float, **changes: Any) -> RequestTimes:
    made = RequestTimes(sent_at=sent_at, piece_times=array("d", pieces), ended_at=pieces[-1] if pieces else sent_at)
    made.output_tokens = len(pieces)
    made.prompt_tokens = 10
    for name, value in changes.items():
        setattr(made, name, value)
    return made


# Workloads


@pytest.mark.parametrize("kind", ["random", "shared-prefix", "multi-turn"])
def test_one_seed_gives_one_workload(kind: Any) -> None:
    first, again, other = (list(workload(kind=kind, turns=3, seed=s).conversations()) for s in (1, 1, 2))
    assert first == again
    assert first != other
    assert list(workload(seed=1).arrivals(2.0)) == list(workload(seed=1).arrivals(2.0))


def test_no_two_prompts_begin_alike_unless_they_are_to_share_a_prefix() -> None:
    def starts(conversations: list[Conversation]) -> set[str]:
        return {" ".join((c.system or c.turns[0].text).split()[:6]) for c in conversations}

    alone = list(workload(num_conversations=50).conversations())
    assert len(starts(alone)) == 50
    shared = list(workload(num_conversations=50, kind="shared-prefix", prefix_tokens=40).conversations())
    assert len({c.system for c in shared}) == 1
    assert len(shared[0].system.split()) == 40
    assert len({c.turns[0].text for c in shared}) == 50


def test_lengths_are_drawn_from_their_mix() -> None:
    found = list(workload(num_conversations=200).conversations())
    assert {len(c.turns[0].text.split()) for c in found} <= set(range(8, 33))
    assert {c.turns[0].max_tokens for c in found} == {4, 16}
    rng = random.Random(1)
    assert {Lengths.parse("5").draw(rng) for _ in range(9)} == {5}


def test_a_multi_turn_conversation_has_its_turns_and_the_longest_is_known() -> None:
    work = workload(kind="multi-turn", turns=8)
    assert {len(c.turns) for c in work.conversations()} == {8}
    assert work.num_requests == 48
    assert work.longest_tokens == 8 * (32 + 16)
    assert workload(turns=8).num_requests == 6


def test_a_template_is_taken_off_the_words() -> None:
    work = workload(prompt_tokens=Lengths.fixed(20), words_less=15)
    assert {len(c.turns[0].text.split()) for c in work.conversations()} == {5}
    assert {len(c.turns[0].text.split()) for c in workload(words_less=99).conversations()} == {1}


def test_arrivals_come_at_the_rate_that_was_asked_for() -> None:
    found = list(workload(num_conversations=2000).arrivals(4.0))
    assert found == sorted(found)
    assert found[-1] == pytest.approx(500, rel=0.1)


@pytest.mark.parametrize("text", ["", "x", "0", "8-4", "4,0", "1-x", "1.5"])
def test_a_length_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Lengths.parse(text)


def test_a_warm_up_has_texts_of_its_own_and_is_short() -> None:
    work = workload(kind="multi-turn", turns=8)
    warm = work.warm_up(3)
    assert warm.num_requests == 3
    assert warm.max_tokens.longest == 8
    texts = {turn.text for c in work.conversations() for turn in c.turns}
    assert not texts & {c.turns[0].text for c in warm.conversations()}


# Measurement


def test_percentiles_lie_between_the_values() -> None:
    assert percentile([], 50) == 0.0
    assert percentile([3.0], 99) == 3.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile(range(101), 99) == 99.0


def test_a_row_has_the_numbers_of_its_requests() -> None:
    row = summarize(
        [
            times(0.0, 0.1, 0.2, 0.4, began_at=0.01, cached_tokens=5),
            times(0.0, 0.3, 0.4, 0.5, began_at=0.03),
            times(0.0, error="503: busy"),
        ],
        2.0,
        concurrency=2,
    )
    assert next(iter(row)) == "concurrency"
    assert (row["completed"], row["failed"], row["errors"]) == (2, 1, ["503: busy"])
    assert (row["request_throughput"], row["output_throughput"]) == (1.0, 3.0)
    assert row["total_token_throughput"] == 13.0
    assert row["cached_tokens_share"] == 0.25
    assert row["median_ttft_ms"] == pytest.approx(200)
    assert row["mean_itl_ms"] == pytest.approx(125)
    assert row["p99_itl_ms"] == pytest.approx(197)
    assert row["mean_tpot_ms"] == pytest.approx(125)
    assert row["median_e2el_ms"] == pytest.approx(450)
    assert row["median_queue_ms"] == pytest.approx(20)
    assert "request_goodput" not in row
    assert "history_cached_share" not in row


def test_goodput_counts_requests_that_keep_every_limit() -> None:
    quick, slow_start, stutters = times(0.0, 0.1, 0.2), times(0.0, 0.6, 0.7), times(0.0, 0.1, 0.9)
    found = [quick, slow_start, stutters]
    assert summarize(found, 1.0, Goodput.parse(["ttft:500", "itl:150"]))["request_goodput"] == 1.0
    assert summarize(found, 1.0, Goodput.parse(["ttft:500"]))["request_goodput"] == 2.0
    assert summarize(found, 1.0, Goodput.parse(["e2el:950"]))["request_goodput"] == 3.0
    for word in ("speed:3", "ttft", "itl:fast"):
        with pytest.raises(ConfigError):
            Goodput.parse([word])


def test_turns_have_their_own_first_token_times_and_history_counts_what_was_cached() -> None:
    row = summarize(
        [
            times(0.0, 0.1, 0.2, turn=1),
            times(1.0, 1.3, 1.4, turn=2, history_tokens=100, cached_tokens=96),
            times(1.0, 1.5, 1.6, turn=2, history_tokens=100, cached_tokens=120),  # of the new text too: counts once
        ],
        1.0,
    )
    assert row["median_ttft_ms_turn_1"] == pytest.approx(100)
    assert row["median_ttft_ms_turn_2"] == pytest.approx(400)
    assert row["history_cached_share"] == pytest.approx(0.98)


def test_peak_counts_who_is_under_way_at_once() -> None:
    assert peak_in_flight([]) == 0
    assert peak_in_flight([times(0.0, 1.0), times(0.5, 2.0), times(1.0, 3.0)]) == 2


# Report

ROW = summarize([times(0.0, 0.1, 0.2)], 1.0, concurrency=4, request_rate="inf", workload="random")


def test_the_table_shows_what_rows_have_and_leaves_out_what_none_has() -> None:
    head, line, *more = report.table([ROW]).splitlines()
    assert "new tok/s" in head
    assert "rate/s" not in head
    assert "of history" not in head
    assert "random" in line
    assert not more
    failed = summarize([times(0.0, error="503: busy")], 1.0, concurrency=4)
    assert "failed at 4 streams: 503: busy" in report.table([ROW, failed])


def test_json_and_picture_are_written(tmp_path: Path) -> None:
    rows = [ROW, {**ROW, "concurrency": 8}]
    report.write_json(rows, tmp_path / "rows.json")
    assert json.loads((tmp_path / "rows.json").read_text()) == {"rows": rows}
    report.plot(rows, tmp_path / "rows.png")
    assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")
    open_loop = [{**ROW, "request_rate": 1.0}, {**ROW, "request_rate": 2.0, "system": "engine"}]
    report.plot(open_loop, tmp_path / "open.png")
    assert (tmp_path / "open.png").stat().st_size > 10_000


def test_the_bar_is_drawn_on_terminals_alone(capsys: pytest.CaptureFixture[str]) -> None:
    class Terminal:
        said = ""

        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> None:
            self.said += text

        def flush(self) -> None:
            pass

    terminal = Terminal()
    with Progress("2 streams", 2, terminal) as progress:  # type: ignore[arg-type]
        progress.step()
        progress.step()
    assert "2 of 2" in terminal.said
    assert terminal.said.endswith("\n")
    with Progress("2 streams", 1) as progress:
        progress.step()
    assert capsys.readouterr().err == ""


# Comparison

BATCHED = (
    "some line\n"
    '{"n_kv_max": 4096, "n_batch": 2048, "n_ubatch": 512, "flash_attn": 1, "is_pp_shared": 0, "n_gpu_layers": -1, '
    '"n_threads": 2, "n_threads_batch": 2, "pp": 64, "tg": 32, "pl": 8, "n_kv": 768, "t_pp": 1.0, "speed_pp": 512.0, '
    '"t_tg": 3.0, "speed_tg": 85.3, "t": 4.0, "speed": 192.0}\n\n'
)


def test_batched_bench_is_read_as_new_tokens_over_prefill_and_decode() -> None:
    (row,) = parse_batched_bench(BATCHED)
    assert row["concurrency"] == 8
    assert row["output_throughput"] == 8 * 32 / 4.0
    assert (row["decode_throughput"], row["prefill_throughput"]) == (85.3, 512.0)
    assert parse_batched_bench("error: unable to load model\n") == []


def test_the_best_round_counts_and_ratios_are_within_it() -> None:
    def row(system: str, streams: int, rate: float) -> dict[str, Any]:
        return {"system": system, "concurrency": streams, "output_throughput": rate}

    measured = [
        row("engine", 8, 90.0),
        row("batched-bench", 8, 80.0),
        row("batched-bench", 8, 100.0),
        row("llama-server", 8, 30.0),
        row("engine", 8, 70.0),
        row("whole stack", 8, 60.0),
        row("llama-server, chat", 8, 20.0),
        row("engine", 1, 10.0),
    ]
    rows = best_of(measured)
    assert (rows[0]["system"], rows[0]["concurrency"]) == ("engine", 1)
    found = {(r["system"], r["concurrency"]): r for r in rows}
    assert found["engine", 8]["ratio_to_batched_bench"] == 0.9
    assert found["engine", 8]["ratio_to_llama_server"] == 3.0
    assert found["whole stack", 8]["ratio_to_llama_server"] == 3.0
    assert "ratio_to_batched_bench" not in found["engine", 1]
    assert "0.900" in report.table(rows)


def test_programs_are_given_the_same_form(tmp_path: Path) -> None:
    form = RunForm(
        model=tmp_path / "m.gguf",
        concurrencies=(1, 8),
        prompt_tokens=128,
        max_tokens=128,
        kv_type="q8_0",
        threads=2,
        gpu_layers=-1,
    )
    options = form.options()
    assert options[options.index("-c") + 1] == str(8 * 512)
    assert options[options.index("-ctk") + 1] == options[options.index("-ctv") + 1] == "q8_0"
    with pytest.raises(ConfigError):
        Programs.inside(tmp_path)


# The command line


def test_every_run_has_prompts_of_its_own() -> None:
    runs = workloads(arguments("engine --concurrency 1,8 --requests 5".split()))
    assert [(w.num_conversations, streams, rate) for w, streams, rate in runs] == [(5, 1, 0.0), (5, 8, 0.0)]
    assert runs[0][0].seed != runs[1][0].seed
    rates = workloads(arguments("serve --concurrency 16 --request-rate 0.5,2".split()))
    assert [(streams, rate) for _, streams, rate in rates] == [(16, 0.5), (16, 2.0)]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("engine --concurrency x", "--concurrency"),
        ("engine --concurrency 0", "--concurrency"),
        ("engine --request-rate -1", "--request-rate"),
        ("engine --prompt-tokens 9-3", "9-3"),
        ("engine --goodput speed:3", "speed:3"),
        ("engine --turns 0", "--turns"),
        ("engine --model nothing-of-this-name", "nothing-of-this-name"),
        ("engine --temperature 9", "temperature"),
        ("compare --prompt-tokens 8-16", "one length"),
        ("compare --systems engine,vllm", "vllm"),
        ("compare --llama-cpp /nowhere", "/nowhere"),
        ("serve --base-url http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1"),
        ("write-model m.gguf --shape tiny --width 100", "width"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_sentence(
    words: str, names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("bench: ")
    assert names in said
    assert len(said.splitlines()) == 1
