"""How `manage.py up` deals models, GPUs, cores and names out to its workers, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from chatsite.management.commands import up
from chatsite.management.commands.up import Fleet, worker_env
from chatsite.supervisor import StartFailed
from inference import native_build


def dealt(num_workers: int, models: list[str], gpus: list[str], **environ: str) -> list[dict[str, str]]:
    return [
        worker_env(number, models, gpus=gpus, num_workers=num_workers, environ=environ) for number in range(num_workers)
    ]


def test_models_and_gpus_are_dealt_out_in_turn() -> None:
    envs = dealt(4, ["a", "b"], ["0", "1"])
    assert [(env["MODEL"], env["CUDA_VISIBLE_DEVICES"]) for env in envs] == [
        ("a", "0"),
        ("b", "1"),
        ("a", "0"),
        ("b", "1"),
    ]
    assert all("WORKER_THREADS" not in env for env in envs)
    three = dealt(3, ["a", "b", "c"], ["GPU-x", "GPU-y"])
    assert [env["CUDA_VISIBLE_DEVICES"] for env in three] == ["GPU-x", "GPU-y", "GPU-x"]


def test_cores_are_divided_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "usable_cores", lambda: 8)
    assert [env["WORKER_THREADS"] for env in dealt(3, ["a"], [])] == ["2", "2", "2"]
    assert [env["WORKER_THREADS"] for env in dealt(9, ["a"], [])] == ["1"] * 9
    assert "WORKER_THREADS" not in dealt(1, ["a"], [])[0]
    assert "WORKER_THREADS" not in dealt(2, ["a"], [], WORKER_THREADS="6")[0], "the operator's own value stands"


def test_half_of_the_memory_is_divided_where_there_is_no_gpu() -> None:
    assert [env["WORKER_MEMORY_PERCENT"] for env in dealt(3, ["a"], [])] == ["16"] * 3
    assert [env["WORKER_MEMORY_PERCENT"] for env in dealt(64, ["a"], [])] == ["1"] * 64
    sized = dealt(2, ["a"], [], WORKER_SLOTS="8", WORKER_CONTEXT_TOKENS="512")
    assert [env["WORKER_MEMORY_PERCENT"] for env in sized] == ["47"] * 2, "what was asked for may take it all, together"
    assert "WORKER_MEMORY_PERCENT" not in dealt(1, ["a"], [])[0]
    assert "WORKER_MEMORY_PERCENT" not in dealt(2, ["a"], ["0", "1"])[0]
    assert "WORKER_MEMORY_PERCENT" not in dealt(2, ["a"], [], WORKER_MEMORY_PERCENT="30")[0]


@pytest.mark.parametrize(
    ("given", "gpus"),
    [
        ("0,1", ["0", "1"]),
        ("", []),
        ("-1", []),
        ("1,-1,2", ["1"]),
        (" 2 ", ["2"]),
        ("GPU-8932f937,MIG-x", ["GPU-8932f937", "MIG-x"]),
    ],
)
def test_gpus_are_those_that_cuda_would_see(given: str, gpus: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert up.visible_gpus() == gpus


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")


@pytest.mark.skipif(up.can_use_gpus(), reason="this build and machine can use a GPU")
def test_gpus_that_the_build_cannot_use_are_one_sentence_and_one_worker_on_all_cores(
    four_gpus: None, tmp_path: Path, settings: Any
) -> None:
    made = fleet(["smollm2-135m"], None, tmp_path, settings)
    assert (made._gpus, made._num_workers) == ([], 1)
    assert made._no_gpu.startswith("4 GPUs are here that this build of llama.cpp cannot use")
    assert made._no_gpu.count("make install") == 1


def test_gpus_that_the_build_can_use_get_a_worker_each(
    four_gpus: None, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up, "can_use_gpus", lambda: True)  # the machine's; these tests run with and without
    made = fleet(["smollm2-135m"], None, tmp_path, settings)
    assert (made._gpus, made._num_workers, made._no_gpu) == (["0", "1", "2", "3"], 4, "")


def test_gpus_that_nobody_wants_are_no_matter(four_gpus: None, tmp_path: Path, settings: Any) -> None:
    settings.INFERENCE = dataclasses.replace(settings.INFERENCE, gpu_layers=0)
    made = fleet(["smollm2-135m"], None, tmp_path, settings)
    assert (made._gpus, made._num_workers, made._no_gpu) == ([], 1, "")


@pytest.mark.parametrize(
    ("cmake_args", "way"),
    [
        (None, "CMAKE_ARGS=-DGGML_CUDA=on make install"),
        ("-DX=1", "CMAKE_ARGS='-DX=1 -DGGML_CUDA=on' make install"),
        ("-DGGML_CUDA=on", "nvidia-smi"),
    ],
)
def test_what_to_do_about_an_unused_gpu_depends_on_the_build(cmake_args: str | None, way: str) -> None:
    assert native_build.no_gpu(1, cmake_args).endswith(way)


def test_names_and_ports_set_for_one_are_told_apart() -> None:
    envs = dealt(2, ["a"], [], WORKER_NAME="box", WORKER_METRICS_PORT="9100")
    assert [(env["WORKER_NAME"], env["WORKER_METRICS_PORT"]) for env in envs] == [("box-1", "9100"), ("box-2", "9101")]
    assert "WORKER_NAME" not in dealt(1, ["a"], [], WORKER_NAME="box")[0]
    assert "WORKER_NAME" not in dealt(2, ["a"], [])[0], "each has a name of its own already"


def fleet(models: list[str], workers: int | None, tmp_path: Path, settings: Any) -> Fleet:
    settings.STATE_DIR = tmp_path
    return Fleet(lambda line: None, port=65_000, models=models, workers=workers)


class Ready(BaseHTTPRequestHandler):
    """A site that tells all to who shows its token, as /health/ready does once METRICS_TOKEN is set."""

    def do_GET(self) -> None:
        told: dict[str, Any] = {"ready": True, "reasons": []}
        if self.headers["Authorization"] == "Bearer s3cret":
            told["checks"] = {"models": [{"name": "smollm2-135m"}], "workers": []}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(told).encode())

    def log_message(self, *_: object) -> None:
        pass


def test_the_site_tells_up_all_also_where_it_has_a_token(tmp_path: Path, settings: Any) -> None:
    settings.SMOLFLEET = settings.SMOLFLEET.replace(metrics_token="s3cret")
    starting = fleet(["smollm2-135m"], 1, tmp_path, settings)
    starting._check()
    with HTTPServer(("127.0.0.1", 0), Ready) as site:
        thread = threading.Thread(target=site.handle_request)
        thread.start()
        starting._port = site.server_port
        assert starting._is_ready()
        thread.join()


def test_each_model_needs_a_worker(tmp_path: Path, settings: Any) -> None:
    with pytest.raises(StartFailed, match="2 models need at least as many --workers, not 1"):
        fleet(["smollm2-135m", "smollm3-3b"], 1, tmp_path, settings)._check()


def test_two_models_of_one_name_are_refused(tmp_path: Path, settings: Any) -> None:
    with pytest.raises(StartFailed, match="Two models are called smollm2-135m"):
        fleet(["smollm2-135m", "smollm2-135m"], 2, tmp_path, settings)._check_models()
