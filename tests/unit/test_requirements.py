"""Each locked set holds all that its processes import: a web image without llama.cpp, a worker without Django."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

IMPORT_WITH_NOTHING_ELSE = """
import importlib, importlib.abc, importlib.metadata, re, sys

modules, allowed = sys.argv[1].split(","), set(sys.argv[2].split(","))
owners = importlib.metadata.packages_distributions()

def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()

class Wall(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        found = owners.get(name.partition(".")[0])
        if found and not any(plain(owner) in allowed for owner in found):
            raise ModuleNotFoundError(f"{name} comes with {found}, which this set does not hold", name=name)

sys.meta_path.insert(0, Wall())
for module in modules:
    importlib.import_module(module)
"""

WEB = ["chatsite.asgi", "chatsite.celery", "chatsite.urls", "inference.client", "inference.prompt.builder"]
WORKER = [
    "inference.worker.__main__",
    "inference.worker.process.lifecycle",
    "inference.worker.tasks",
    "inference.llama.loader",
]


def held(name: str) -> set[str]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    names = (re.match(r"([A-Za-z0-9_.-]+)==", line) for line in lines)
    return {re.sub(r"[-_.]+", "-", match[1]).lower() for match in names if match}


@pytest.mark.parametrize(("name", "modules"), [("web.txt", WEB), ("worker.txt", WORKER)])
def test_locked_set_is_enough(name: str, modules: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_WITH_NOTHING_ELSE, ",".join(modules), ",".join(held(name))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_web_holds_no_model_and_worker_no_site() -> None:
    assert "llama-cpp-python" not in held("web.txt")
    assert not {"django", "psycopg"} & held("worker.txt")
    assert held("web.txt") | held("worker.txt") <= held("dev.txt")


def test_locks_name_no_index() -> None:
    for path in (ROOT / "requirements").iterdir():
        assert "://" not in path.read_text(), path


LOADED_AT_A_WORKERS_START = """
import sys
from celery import signals
from inference.celery import app
import inference.worker.process.lifecycle

signals.import_modules.send(sender=app)
signals.worker_init.send(sender=None)
print([name for name in sys.modules if name.partition(".")[0] == "chatsite"])
"""


def test_a_gpu_worker_beside_the_site_loads_nothing_of_it() -> None:
    """Celery looks for a Django project by the environment, which both processes of one machine may share."""
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "chatsite.settings"}
    done = subprocess.run(
        [sys.executable, "-c", LOADED_AT_A_WORKERS_START], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
