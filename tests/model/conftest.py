"""Real models for these tests: SmolLM2 from its wheel, and a tiny SmolLM3 written here. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inference import catalog
from inference.bench import shaped_model
from inference.config import InferenceConfig
from inference.config import load as load_config
from inference.llama.loader import LoadedModel, load
from inference.llama.vocab import kit_of
from inference.prompt.builder import PromptBuilder


def small_config(**settings: str) -> InferenceConfig:
    return load_config({"WORKER_SLOTS": "8", "WORKER_CONTEXT_TOKENS": "512", "WORKER_THREADS": "1", **settings})


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shaped_model.write(tmp_path_factory.mktemp("models") / "tiny-smollm3.gguf")


@pytest.fixture(scope="session")
def tiny(tiny_path: Path) -> Iterator[LoadedModel]:
    model = load(catalog.entry_of_path(tiny_path), small_config())
    yield model
    model.backend.close()


@pytest.fixture(scope="session")
def smollm2() -> Iterator[LoadedModel]:
    model = load(catalog.Catalog().entry("smollm2-135m"), small_config())
    yield model
    model.backend.close()


@pytest.fixture(scope="session")
def smollm3_builder(tiny_path: Path) -> PromptBuilder:
    """SmolLM3's template over the tiny vocabulary, which has its special tokens."""
    entry = catalog.entry_of_path(tiny_path)
    assert entry.template == "smollm3.jinja"
    return PromptBuilder(kit_of(tiny_path, entry))
