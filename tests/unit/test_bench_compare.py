"""`compare` with stand-ins for llama.cpp's programs, which take minutes to build: their forms are llama.cpp's own."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path

import pytest

from inference.bench import llama_cpp, shaped_model
from inference.bench.__main__ import main
from inference.errors import ConfigError

pytestmark = pytest.mark.model

BATCHED_BENCH = """
import json, sys
words = dict(zip(sys.argv, sys.argv[1:]))
assert words["-fa"] == "on" and words["-ctk"] == "f16" and words["--output-format"] == "jsonl"
pp, tg = int(words["-npp"]), int(words["-ntg"])
for pl in map(int, words["-npl"].split(",")):
    assert int(words["-c"]) >= pl * (pp + tg)
    print(json.dumps({"pp": pp, "tg": tg, "pl": pl, "t": 1.0, "speed_tg": 1.0, "speed_pp": 1.0}))
"""

SERVER = """
import http.server, json, sys
if "--help" in sys.argv:
    print("-bs,   --backend-sampling")
    sys.exit()
if "-bs" in sys.argv and BREAKS:
    sys.exit("no such device")
words = dict(zip(sys.argv, sys.argv[1:]))

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply(b'{"data": [{"id": "stub"}]}')
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = {"text": "a"} if "prompt" in body else {"delta": {"content": "a"}}
        usage = {"prompt_tokens": 20, "completion_tokens": body["max_tokens"]}
        pieces = [{"choices": [{**text, "finish_reason": "length"}]}, {"choices": [], "usage": usage}]
        self.reply("".join(f"data: {json.dumps(piece)}\\n\\n" for piece in pieces).encode())
    def reply(self, data):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", int(words["--port"])), Handler).serve_forever()
"""


def stand_ins(folder: Path, *, breaks: bool = False) -> Path:
    (folder / "bin").mkdir()
    for name, code in zip(llama_cpp.PROGRAMS, (BATCHED_BENCH, f"BREAKS = {breaks}\n{SERVER}")):
        program = folder / "bin" / name
        program.write_text(f"#!{sys.executable}\n{code}")
        program.chmod(0o755)
    return folder


def test_every_system_has_its_turn_and_ours_its_ratios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_THREADS", "1")
    model = shaped_model.write(tmp_path / "tiny.gguf")
    found, picture = tmp_path / "rows.json", tmp_path / "rows.png"
    words = f"compare --model {model} --llama-cpp {stand_ins(tmp_path)} --json {found} --plot {picture}"
    assert main(f"{words} --concurrency 2,1 --prompt-tokens 16 --max-tokens 8".split()) == 0
    said = json.loads(found.read_text())
    order = ["batched-bench", "engine", "llama-server", "llama-server-bs"]
    assert [(row["system"], row["concurrency"]) for row in said["rows"]] == [(s, n) for n in (1, 2) for s in order]
    turns = [(row["round"], row["system"]) for row in said["measured"] if row["concurrency"] == 1]
    assert turns == [(number, system) for number in (1, 2) for system in order]
    for row in said["rows"]:
        if row["system"] == "engine":
            assert row["ratio_to_batched_bench"] == pytest.approx(row["output_throughput"] / (8 * row["concurrency"]))
            assert row["ratio_to_llama_server"] > 0
    assert picture.stat().st_size > 10_000


def test_a_server_that_does_not_start_is_said_with_its_last_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = shaped_model.write(tmp_path / "tiny.gguf")
    words = (
        f"compare --model {model} --llama-cpp {stand_ins(tmp_path, breaks=True)} --systems llama-server,llama-server-bs"
    )
    assert main(f"{words} --concurrency 1 --max-tokens 8".split()) == 2
    assert "no such device" in capsys.readouterr().err


def test_a_source_without_llama_cpp_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "llama_cpp_python-0").mkdir()
    with tarfile.open(tmp_path / "sdist.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "llama_cpp_python-0", "llama_cpp_python-0")
    with pytest.raises(ConfigError, match="no source"):
        llama_cpp.build(tmp_path / "sdist.tar.gz")
    with pytest.raises(ConfigError, match="no source"):
        llama_cpp.build(tmp_path)


def test_what_was_built_once_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source whose build file makes the two programs out of nothing: only the second call has nothing to do."""
    monkeypatch.setenv("STATE_DIR", str(tmp_path / "state"))
    source = tmp_path / "source"
    (source / "tools" / "batched-bench").mkdir(parents=True)
    (source / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.21)\nproject(x NONE)\n"
        + "".join(
            f"add_custom_target({name} COMMAND ${{CMAKE_COMMAND}} -E touch ${{CMAKE_BINARY_DIR}}/bin/{name})\n"
            for name in llama_cpp.PROGRAMS
        )
        + "file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/bin)\n"
    )
    programs = llama_cpp.build(source)
    assert programs.server.is_file()
    (source / "CMakeLists.txt").write_text('message(FATAL_ERROR "built again")\n')
    assert llama_cpp.build(source) == programs
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CUDA=on")  # another build
    with pytest.raises(ConfigError, match="built again"):
        llama_cpp.build(source)
