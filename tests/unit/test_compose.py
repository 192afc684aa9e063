"""docker-compose.yml and the image files: what they name exists, and settings know every variable they set."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from chatsite.redis_acl import ROLES

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("prepare", "web", "site-worker", "worker-cpu", "worker-cuda")
SOURCES = "".join(
    (ROOT / name).read_text()
    for name in (
        "chatsite/settings.py",
        "chatsite/site_config.py",
        "chatsite/outside_config.py",
        "chatsite/state_dir.py",
        "chatsite/management/commands/prepare.py",
        "inference/config.py",
    )
)
NOT_OURS = {"PATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "DJANGO_SETTINGS_MODULE", "HF_HOME", "CMAKE_ARGS"}


def test_every_process_of_the_design_is_a_service() -> None:
    assert {"web", "site-worker", "worker-cpu", "worker-cuda", "postgres", "redis"} <= set(SERVICES)


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"prepare"}))
def test_service_that_stays_has_a_health_check_and_comes_back(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"]
    assert service["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_service_waits_for_services_that_exist_and_tell_their_health(name: str) -> None:
    for other, how in SERVICES[name].get("depends_on", {}).items():
        assert other in SERVICES
        if how["condition"] == "service_healthy":
            assert SERVICES[other]["healthcheck"]["test"]
        else:
            assert how["condition"] == "service_completed_successfully"
            assert SERVICES[other]["restart"] == "no"


@pytest.mark.parametrize("name", OURS)
def test_image_is_built_from_files_that_are_here_and_runs_unprivileged(name: str) -> None:
    dockerfile = ROOT / SERVICES[name]["build"]["dockerfile"]
    lines = dockerfile.read_text().splitlines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users
    assert users[-1] not in ("root", "0")
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), source


@pytest.mark.parametrize("name", OURS)
def test_variables_of_our_services_are_ones_that_settings_know(name: str) -> None:
    dockerfile = (ROOT / SERVICES[name]["build"]["dockerfile"]).read_text().replace("\\\n", " ")
    baked = {
        name
        for line in dockerfile.splitlines()
        if line.startswith("ENV ")
        for name in re.findall(r"\s([A-Z_]+)=", line)
    }
    for variable in (set(SERVICES[name]["environment"]) | baked) - NOT_OURS:
        assert f'"{variable}"' in SOURCES, variable


def test_secrets_come_from_outside() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    for name in ("POSTGRES_PASSWORD", *(f"REDIS_{role.upper()}_PASSWORD" for role in ROLES), "SECRET_KEY"):
        assert re.search(rf"{name}: \$\{{{name}:\?", text), name
        assert not re.search(rf"{name}:\s*[A-Za-z0-9]", text), name


def test_gpu_workers_get_no_database() -> None:
    for name in ("worker-cpu", "worker-cuda"):
        assert "DATABASE_URL" not in SERVICES[name]["environment"]


def test_volumes_are_declared_or_folders_that_are_here() -> None:
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())}
    here = {source for source in used if source.startswith("./")}
    assert used - here == set(COMPOSE["volumes"])
    assert all((ROOT / source).is_dir() for source in here)


@pytest.mark.parametrize(
    ("name", "role"),
    [("prepare", "web"), ("web", "web"), ("site-worker", "site"), ("worker-cpu", "gpu"), ("worker-cuda", "gpu")],
)
def test_each_process_is_a_user_of_its_own_in_redis(name: str, role: str) -> None:
    """And knows the password of no other."""
    environment = SERVICES[name]["environment"]
    variable = f"REDIS_{role.upper()}_PASSWORD"
    assert environment["REDIS_URL"] == f"redis://{role}:${{{variable}:?set {variable}}}@redis:6379/0"
    assert set(re.findall(r"REDIS_\w+_PASSWORD", str(environment))) == {variable}


def test_redis_starts_with_the_users_and_writes_to_its_volume_alone() -> None:
    redis = SERVICES["redis"]
    assert redis["command"][:2] == ["sh", "/etc/smolfleet/start.sh"]
    assert redis["volumes"] == ["redis:/data", "./docker/redis:/etc/smolfleet:ro"]
    assert (ROOT / "docker/redis/start.sh").is_file()
    assert set(redis["environment"]) == {f"REDIS_{role.upper()}_PASSWORD" for role in ROLES}
