"""How `manage.py up` deals models, GPUs, cores and names out to its workers, and what it refuses."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from chatsite.management.commands import up
from chatsite.management.commands.up import Fleet, worker_env
from chatsite.supervisor import StartFailed


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
