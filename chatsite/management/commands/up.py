"""Everything on one machine with one command: servers, database, web, site worker, GPU workers; until Ctrl-C."""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import redis
from django.conf import settings
from django.core.management.base import BaseCommand, OutputWrapper
from redis.backoff import NoBackoff
from redis.retry import Retry

from chatsite import state_dir, state_identity
from chatsite.embedded import HOST, BundledPostgres, BundledValkey, EmbeddedError
from chatsite.supervisor import Child, Lock, StartFailed, StopRequested, Supervisor
from inference import native_build
from inference.catalog import Catalog, CatalogEntry
from inference.celery import SITE_QUEUE
from inference.coordination import redis_keys
from inference.errors import InferenceError
from inference.machine import usable_cores
from inference.model_files.load_notes import NO_GPU
from inference.model_files.memory_estimate import CPU_MEMORY_PERCENT
from inference.native_build import Record

DEFAULT_PORT = 8000
CHECK_SECONDS = 3
GPU_SECONDS = 60.0  # until a driver that hangs is taken for none
WEB_GRACE_SECONDS = 5.0
SITE_GRACE_SECONDS = 15.0
DRAIN_MARGIN_SECONDS = 10.0  # on top of DRAIN_SECONDS: handing on, unloading
LOADING = re.compile(r"\bmodel_(loading|download)")


class Command(BaseCommand):
    help = "Start everything and keep it running; Ctrl-C ends it."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="of the site, on 127.0.0.1")
        parser.add_argument("--state-dir", help="keeps data, keys and logs (STATE_DIR; default: var)")
        parser.add_argument(
            "--model",
            action="append",
            dest="models",
            help="catalog name, path of a .gguf, or owner/repo:file.gguf (MODEL); again for each further model",
        )
        parser.add_argument(
            "--workers",
            type=int,
            help="GPU workers in all, dealt out to the models in turn (default: one per GPU, at least one per model)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            Fleet(self._say, **{name: options[name] for name in ("port", "models", "workers")}).run()
        except (StartFailed, EmbeddedError, InferenceError) as error:
            sys.exit(str(error))
        except StopRequested:
            sys.exit(130)

    def _say(self, line: str) -> None:
        try:
            self.stdout.write(line)
            self.stdout.flush()
        except OSError:  # the terminal or pipe is gone; what runs must still be ended in order
            self.stdout = OutputWrapper(io.StringIO())


class Fleet:
    """What `up` starts, in which order, and how it ends."""

    def __init__(self, say: Any, *, port: int, models: list[str] | None, workers: int | None) -> None:
        self._say = say
        self._port = port
        self._state_dir: Path = settings.STATE_DIR
        self._gpus = visible_gpus() if settings.INFERENCE.gpu_layers else []
        self._no_gpu = ""
        if self._gpus and workers != 0 and not can_use_gpus():
            self._no_gpu = native_build.no_gpu(len(self._gpus), built_with())
            self._gpus = []
        self._models = list(models or [settings.INFERENCE.model])
        self._num_workers = max(len(self._models), len(self._gpus)) if workers is None else workers
        self._supervisor = Supervisor(self._state_dir, cwd=settings.BASE_DIR, say=say)
        self._env = {
            **os.environ,
            "STATE_DIR": str(self._state_dir),
            "PYTHONUNBUFFERED": "1",
            "DJANGO_SETTINGS_MODULE": "chatsite.settings",
        }
        # Settings put the address they found into this process's environment; only the operator's own one counts here.
        self._own_redis = settings.REDIS_URL if settings.IS_REDIS_GIVEN else ""
        self._own_database = settings.DATABASE_URL if settings.IS_DATABASE_GIVEN else ""
        self._gpu_redis = ""  # the same server, as the GPU workers' user
        self._told: set[str] = set()
        self._entries: list[CatalogEntry] = []
        self._web: list[Child] = []
        self._gpu_workers: list[Child] = []
        self._site_workers: list[Child] = []

    def run(self) -> None:
        """Start, say Ready, keep running, end.

        Raises:
            StartFailed, EmbeddedError, InferenceError: one sentence. StopRequested: a signal came during the start.
        """
        self._check()
        lock = Lock(self._state_dir / "lock")
        self._supervisor.listen()
        try:
            state_identity.settle(self._state_dir)  # before what is remembered of an earlier run is acted on
            self._supervisor.end_leftovers()
            self._start()
            self._say(f"Ready: http://{HOST}:{self._port}")
            self._supervisor.watch()
            self._say("Stopping; a second Ctrl-C hurries.")
        finally:
            self._stop()
            lock.release()
        self._say("Stopped.")

    # -- before anything heavy

    def _check(self) -> None:
        state_dir.make(self._state_dir)
        if not 1 <= self._port <= 65_535:
            raise StartFailed(f"--port must be between 1 and 65535, not {self._port}.")
        if not 0 <= self._num_workers <= 64:
            raise StartFailed(f"--workers must be between 0 and 64, not {self._num_workers}.")
        if 0 < self._num_workers < len(self._models):
            raise StartFailed(
                f"{len(self._models)} models need at least as many --workers, not {self._num_workers}; one serves one."
            )
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, self._port))
            except OSError as error:
                why = {errno.EADDRINUSE: "is taken", errno.EACCES: "needs more rights"}.get(
                    error.errno or 0, str(error)
                )
                raise StartFailed(f"Port {self._port} {why}; choose another with --port.") from None
        self._check_given_servers()
        if self._num_workers:
            self._check_models()

    def _check_models(self) -> None:
        catalog = Catalog.of(settings.INFERENCE)
        self._entries = [catalog.entry(model) for model in self._models]
        names = [entry.name for entry in self._entries]
        for name in names:
            if names.count(name) > 1:
                raise StartFailed(f"Two models are called {name}; each --model must be another one.")
        # Workers run in the project's folder, not in the one in which the command was given.
        self._models = [
            str(Path(model).expanduser().resolve())
            if ("/" in model or model.endswith(".gguf")) and Path(model).expanduser().exists()
            else model
            for model in self._models
        ]
        self._env.setdefault("DEFAULT_MODEL", names[0])  # so that messages can wait before a worker is there

    def _check_given_servers(self) -> None:
        """Those the operator named must answer now: children would only try for ever."""
        if self._own_redis:
            try:
                with self._redis(self._own_redis) as client:
                    client.ping()
            except redis.RedisError as error:
                raise StartFailed(f"REDIS_URL: no Redis answers there: {error}") from None
        if self._own_database:
            try:
                psycopg.connect(self._own_database, connect_timeout=CHECK_SECONDS).close()
            except psycopg.Error as error:
                reason = str(error).strip().splitlines()[0]
                raise StartFailed(f"DATABASE_URL: no Postgres answers there: {reason}") from None

    def _redis(self, url: str) -> redis.Redis:
        return redis.Redis.from_url(
            url, socket_timeout=CHECK_SECONDS, socket_connect_timeout=CHECK_SECONDS, retry=Retry(NoBackoff(), 0)
        )

    # -- start

    def _start(self) -> None:
        if self._no_gpu:
            self._say(self._no_gpu)
            self._told.add(NO_GPU)  # the workers say the same, but not what to do
        for note in (note for entry in self._entries for note in entry.notes):
            self._tell_once(note, note)
        if self._own_redis:
            self._env["REDIS_URL"] = self._gpu_redis = self._own_redis
        else:
            self._say("Starting Valkey.")
            valkey = BundledValkey(self._state_dir)
            self._env["REDIS_URL"] = self._supervisor.start_server(valkey)
            self._gpu_redis = valkey.gpu_url
        for number in range(self._num_workers):
            self._start_gpu_worker(number)  # loads its model while the rest starts: it needs Redis alone
        if self._own_database:
            self._env["DATABASE_URL"] = self._own_database
        else:
            self._say("Starting Postgres.")
            self._env["DATABASE_URL"] = self._supervisor.start_server(BundledPostgres(self._state_dir))
        self._say("Preparing the database and static files.")
        self._supervisor.run_once([sys.executable, "manage.py", "prepare"], self._env, name="Preparing")
        self._say("Starting the site.")
        self._start_site_worker()
        self._start_web()
        self._supervisor.wait_until(self._is_ready)

    def _start_gpu_worker(self, number: int) -> None:
        entry = self._entries[number % len(self._entries)]
        env = (
            self._env
            | {"REDIS_URL": self._gpu_redis}
            | worker_env(number, self._models, gpus=self._gpus, num_workers=self._num_workers, environ=os.environ)
        )
        name = "GPU worker" if self._num_workers == 1 else f"GPU worker {number + 1}"
        self._say(f"Starting {name} with {entry.title}.")
        child = self._child(
            name,
            f"gpu-worker-{number + 1}",
            ["-m", "inference.worker"],
            grace_seconds=settings.INFERENCE.drain_seconds + DRAIN_MARGIN_SECONDS,
            env=env,
            follow=LOADING,
            task=f"loading the model {entry.title}",
            cure=lambda code: native_build.cure(code, built_with()),
        )
        self._gpu_workers.append(child)
        self._supervisor.start(child)

    def _start_site_worker(self) -> None:
        arguments = ["-m", "celery", "-A", "chatsite.celery", "worker", "-B", "-P", "threads", "-c", "8", "-Q", "site"]
        arguments += ["-l", "INFO", "--without-gossip", "--without-mingle"]
        child = self._child("Site worker", "site-worker", arguments, grace_seconds=SITE_GRACE_SECONDS)
        self._site_workers.append(child)
        self._supervisor.start(child)

    def _start_web(self) -> None:
        arguments = ["-m", "chatsite.server", "-b", HOST, "-p", str(self._port)]
        child = self._child("Web", "web", arguments, grace_seconds=WEB_GRACE_SECONDS)
        self._web.append(child)
        self._supervisor.start(child)

    def _child(
        self,
        name: str,
        log_name: str,
        arguments: list[str],
        *,
        grace_seconds: float,
        env: dict[str, str] | None = None,
        follow: re.Pattern[str] | None = None,
        task: str = "starting",
        cure: Callable[[int], str] | None = None,
    ) -> Child:
        return Child(
            name=name,
            command=[sys.executable, *arguments],
            env=self._env if env is None else env,
            log_path=self._state_dir / "logs" / f"{log_name}.log",
            grace_seconds=grace_seconds,
            follow=follow,
            task=task,
            cure=cure,
        )

    def _is_ready(self) -> bool:
        """Ask /health/ready; each new reason for waiting is shown once."""
        try:
            asking = urllib.request.Request(f"http://{HOST}:{self._port}/health/ready")
            if token := settings.SMOLFLEET.metrics_token:  # else it would say no more than to a stranger
                asking.add_header("Authorization", f"Bearer {token}")
            with _opener.open(asking, timeout=3.0) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 503:
                    raise StartFailed(f"The site answers {error.code} to /health/ready; see the web log.") from None
                found = json.load(error)
        except OSError:  # does not listen yet
            return False
        if not self._num_workers and not found["ready"]:
            checks = found["checks"]
            if all(checks[name]["ok"] for name in ("postgres", "redis", "site_worker")):
                self._say("No GPU worker was asked for: messages wait until one joins.")
                return True
        served = {model["name"] for model in found["checks"]["models"]}
        missing = [entry.name for entry in self._entries if entry.name not in served] if found["ready"] else []
        for reason in (*found["reasons"], *(f"No worker has {name} ready." for name in missing)):
            self._tell_once(reason, f"Waiting: {reason}")
        is_ready = bool(found["ready"]) and not missing
        for worker in found["checks"]["workers"] if is_ready else ():
            for note in worker["notes"] + worker["degradations"]:
                self._tell_once(note, note)
        return is_ready

    def _tell_once(self, what: str, line: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._say(line)

    # -- end

    def _stop(self) -> None:
        self._supervisor.stop(
            [self._web, self._gpu_workers, self._site_workers],
            before_last=self._is_all_recorded if self._site_workers else None,
        )

    def _is_all_recorded(self) -> bool:
        """Whether the site worker has fetched every answer that the GPU workers handed over."""
        try:
            with self._redis(self._env["REDIS_URL"]) as client:
                return bool(client.llen(redis_keys.CELERY_PREFIX + SITE_QUEUE) == 0)
        except redis.RedisError:  # nothing can be recorded any more; the next start does
            return True


_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the proxy of the environment is not for us


def worker_env(
    number: int, models: Sequence[str], *, gpus: Sequence[str], num_workers: int, environ: Mapping[str, str]
) -> dict[str, str]:
    """What worker `number` (from 0) of `num_workers` has of its own: models and GPUs are dealt out in turn, the cores
    and the memory of a machine without a GPU are divided, and a name that was set for one gets a number."""
    env = {"MODEL": models[number % len(models)]}
    if len(gpus) > 1:
        env["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
    if num_workers > 1 and not gpus and not environ.get("WORKER_THREADS", "").strip():
        env["WORKER_THREADS"] = str(max(1, usable_cores() // num_workers))
    if num_workers > 1 and not gpus and not environ.get("WORKER_MEMORY_PERCENT", "").strip():
        is_sized = environ.get("WORKER_SLOTS", "").strip() and environ.get("WORKER_CONTEXT_TOKENS", "").strip()
        env["WORKER_MEMORY_PERCENT"] = str(max(1, (95 if is_sized else CPU_MEMORY_PERCENT) // num_workers))
    if num_workers > 1 and (name := environ.get("WORKER_NAME", "").strip()):
        env["WORKER_NAME"] = f"{name}-{number + 1}"
    if num_workers > 1 and (port := environ.get("WORKER_METRICS_PORT", "").strip()).isdigit() and int(port):
        env["WORKER_METRICS_PORT"] = str(int(port) + number)
    return env


def visible_gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES may be set to, one entry per GPU of this machine."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:  # CUDA reads it up to the first entry that is none, such as -1
        names = (name.strip() for name in given.split(","))
        return list(itertools.takewhile(lambda name: name.isdigit() or name.startswith(("GPU-", "MIG-")), names))
    cards = Path("/proc/driver/nvidia/gpus")
    return [str(number) for number, _ in enumerate(cards.iterdir())] if cards.is_dir() else []


def can_use_gpus() -> bool:
    """Whether llama.cpp, as it is built, sees a GPU. Another process is asked: looking takes hold of the device."""
    command = [sys.executable, "-m", "inference.llama.device"]
    try:
        asked = subprocess.run(command, cwd=settings.BASE_DIR, capture_output=True, text=True, timeout=GPU_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0 and asked.stdout.strip() not in ("", "0")


def built_with() -> str | None:
    """The CMAKE_ARGS of the installed llama.cpp, as far as anybody knows."""
    record = Record.read()
    return record.cmake_args if record else None
