"""`serve` against a small server that behaves, and one that misbehaves in every way a server can."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from inference.bench.__main__ import main
from inference.bench.serve import ServeBench
from inference.bench.workload import Lengths, Workload, default_sampling
from inference.errors import ConfigError

USAGE = {"prompt_tokens": 20, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}


def piece(**delta: str) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) + "\n\n"


START = piece(role="assistant", content="")
FINISH = 'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}\n\n'
END = f"data: {json.dumps({'choices': [], 'usage': USAGE})}\n\ndata: [DONE]\n\n"
WHOLE = [START, piece(content="a"), piece(reasoning_content="b"), piece(content="c"), FINISH, END]


class Server(ThreadingHTTPServer):
    """Answers request n with `answer(n)`: a status and the pieces of a body. Keeps the bodies it was sent."""

    def __init__(self, answer: Callable[[int], tuple[int, list[str]]]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.lock = threading.Lock()
        self.base_url = f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.reply(200, ['{"data": [{"id": "stub"}]}'])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append((self.path, body))
            number = len(self.server.asked)
        self.reply(*self.server.answer(number))

    def reply(self, status: int, pieces: list[str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for text in pieces:
            self.wfile.write(text.encode())
            self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[int], tuple[int, list[str]]]], Server]]:
    running: list[tuple[Server, threading.Thread]] = []

    def start(answer: Callable[[int], tuple[int, list[str]]]) -> Server:
        server = Server(answer)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        running.append((server, thread))
        return server

    yield start
    for server, thread in running:
        server.shutdown()
        thread.join()
        server.server_close()


Start = Callable[[Callable[[int], tuple[int, list[str]]]], Server]


def bench(server: Server, **options: Any) -> ServeBench:
    return ServeBench(server.base_url, sampling=default_sampling(), **options)


def workload(number: int, **changes: Any) -> Workload:
    return Workload(num_conversations=number, prompt_tokens=Lengths.fixed(5), max_tokens=Lengths.fixed(3), **changes)


def test_pieces_of_any_kind_and_the_servers_own_counts_are_what_is_measured(serve: Start) -> None:
    server = serve(lambda number: (200, WHOLE))
    done: list[int] = []
    row = bench(server).run(workload(6), concurrency=3, on_done=lambda: done.append(1))
    assert (row["completed"], row["failed"], len(done)) == (6, 0, 6)
    assert row["total_output_tokens"] == 18
    assert row["cached_tokens_share"] == 0.4
    assert row["median_ttft_ms"] > 0
    assert row["concurrency"] == 3
    path, body = server.asked[0]
    assert path == "/v1/chat/completions"
    assert body["model"] == "stub"
    assert body["ignore_eos"] is True
    assert body["max_tokens"] == 3
    assert len(body["messages"][0]["content"].split()) == 5


def test_a_misbehaving_server_fails_its_requests_and_nothing_else(serve: Start) -> None:
    broken = {
        2: (503, ['{"error": {"message": "busy"}}']),
        3: (200, [START, piece(content="a"), 'data: {"error": {"message": "out of memory"}}\n\n']),
        4: (200, [START, piece(content="a")]),
        5: (200, [START, "data: {half\n\n"]),
        6: (200, ['error: {"code": 500}\n\n']),
        7: (200, [START, FINISH, "data: [DONE]\n\n"]),
        8: (200, ['data: ["a list"]\n\n']),
    }
    server = serve(lambda number: broken.get(number, (200, WHOLE)))
    row = bench(server).run(workload(10), concurrency=1)
    assert (row["completed"], row["failed"]) == (3, 7)
    said = " ".join(row["errors"])
    for part in ("503", "busy", "a piece that is none", "500", "a list"):
        assert part in said
    assert row["total_output_tokens"] == 9


def test_a_server_that_hangs_up_or_is_not_there_fails_its_requests(serve: Start) -> None:
    def hang_up(number: int) -> tuple[int, list[str]]:
        raise ConnectionAbortedError

    server = serve(hang_up)
    server.handle_error = lambda *_: None  # type: ignore[method-assign,assignment]
    row = bench(server).run(workload(2), concurrency=2)
    assert row["failed"] == 2
    assert row["median_ttft_ms"] == 0.0
    with pytest.raises(ConfigError):
        ServeBench("http://127.0.0.1:9/v1", sampling=default_sampling())


def test_a_conversation_goes_on_with_the_answers_it_got_and_stops_at_a_failure(serve: Start) -> None:
    server = serve(lambda number: (200, WHOLE) if number != 5 else (500, ["{}"]))
    row = bench(server).run(workload(2, kind="multi-turn", turns=3), concurrency=1)
    assert [len(body["messages"]) for _, body in server.asked] == [1, 3, 5, 1, 3]
    assert server.asked[1][1]["messages"][1] == {"role": "assistant", "content": "ac"}
    assert (row["completed"], row["failed"]) == (4, 1)
    assert row["history_cached_share"] == pytest.approx(8 / 23)
    assert {"median_ttft_ms_turn_1", "median_ttft_ms_turn_3"} <= set(row)


def test_an_open_loop_holds_nobody_back(serve: Start) -> None:
    everybody = threading.Barrier(5, timeout=30)

    def wait_for_all(number: int) -> tuple[int, list[str]]:
        everybody.wait()  # passes only when all five are under way
        return 200, WHOLE

    row = bench(serve(wait_for_all)).run(workload(5), concurrency=1, request_rate=200.0)
    assert row["completed"] == 5
    assert row["concurrency"] == 5
    assert row["request_rate"] == 200.0


def test_raw_prompts_are_plain_completions(serve: Start) -> None:
    text = ['data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n', END]
    server = serve(lambda number: (200, text))
    row = bench(server, is_raw=True, ignore_eos=False).run(workload(2), concurrency=2)
    assert row["completed"] == 2
    path, body = server.asked[0]
    assert path == "/v1/completions"
    assert len(body["prompt"].split()) == 5
    assert "ignore_eos" not in body


def test_what_a_template_adds_is_asked_of_the_server(serve: Start) -> None:
    assert bench(serve(lambda number: (200, WHOLE))).template_tokens() == 4
    with pytest.raises(ConfigError, match="busy"):
        bench(serve(lambda number: (503, ["busy"]))).template_tokens()


def test_failed_requests_are_said_and_are_the_exit_status(serve: Start, capsys: pytest.CaptureFixture[str]) -> None:
    well, ill = serve(lambda number: (200, WHOLE)), serve(lambda number: (503, ["busy"]))
    words = ["serve", "--concurrency", "2", "--base-url"]
    assert main([*words, well.base_url]) == 0
    assert main([*words, ill.base_url]) == 1
    assert "503: busy" in capsys.readouterr().out
