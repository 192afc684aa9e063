"""The catalog: shipped and own entries, names and paths, what is chosen when nothing is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference import catalog, config
from inference.catalog import Catalog, Source
from inference.errors import ConfigError, ModelFileError
from inference.model_files import gguf_header
from tests import small_gguf

OWN = """
[models.mine]
title = "Mine"
source = { path = "/nowhere/mine.gguf" }
context_tokens = 4096
sampling = { temperature = 0.1 }
"""


def test_shipped_entries_are_sound() -> None:
    entries = Catalog().entries
    assert {"smollm3-3b", "smollm2-135m"} <= set(entries)
    big = entries["smollm3-3b"]
    assert (big.sampling.temperature, big.sampling.top_p) == (0.6, 0.95)
    assert big.thinking is not None
    assert big.thinking.open == "<think>"
    assert big.source.hub == "ggml-org/SmolLM3-3B-GGUF"
    small = entries["smollm2-135m"]
    assert (small.context_tokens, small.slots, small.thinking) == (8192, 8, None)


def test_own_entries_join_the_shipped_ones(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text(OWN)
    entry = Catalog(str(file)).entry("mine")
    assert (entry.title, entry.context_tokens, entry.sampling.temperature) == ("Mine", 4096, 0.1)
    with pytest.raises(ModelFileError, match=r"/nowhere/mine\.gguf"):
        catalog.resolve(entry)


@pytest.mark.parametrize(
    ("broken", "word"),
    [
        (OWN.replace("mine]", '"Bad Name"]'), "lower-case"),
        (OWN.replace("context_tokens", "context_size"), "context_size|context_tokens"),
        (OWN.replace("4096", "1"), "context_tokens"),
        (OWN.replace("0.1", "9.0"), "temperature"),
        (OWN.replace('path = "/nowhere/mine.gguf"', 'hub = "a/b"'), "file"),
        (OWN.replace('path = "/nowhere/mine.gguf"', 'path = "x", hub = "y"'), "exactly one"),
        (OWN.replace('path = "/nowhere/mine.gguf"', 'path = "x", sha256 = "ABC"'), "sha256"),
        (OWN + 'kv_type = "f64"', "f64"),
        (OWN + 'tools = "xml"', "xml"),
        ("not toml [", "TOML"),
        ("models = 3", "tables"),
    ],
)
def test_a_malformed_entry_stops_the_start_by_name(tmp_path: Path, broken: str, word: str) -> None:
    file = tmp_path / "models.toml"
    # a key after the sampling table belongs to the entry, since tables are inline
    file.write_text(broken)
    with pytest.raises(ConfigError, match=word) as error:
        Catalog(str(file))
    assert error.value.message.startswith("MODELS_FILE")


def test_a_missing_models_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="MODELS_FILE"):
        Catalog(str(tmp_path / "none.toml"))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="smollm2-135m"):
        Catalog().entry("gpt-9")


def test_a_path_is_a_model(tmp_path: Path) -> None:
    entry = Catalog().entry(str(small_gguf.write(tmp_path / "My Model (1).gguf")))
    assert entry.name == "my-model-1"
    assert catalog.resolve(entry).path.name == "My Model (1).gguf"
    with pytest.raises(ModelFileError, match="There is no model file"):
        Catalog().entry(str(tmp_path / "none.gguf"))


@pytest.mark.parametrize(
    ("address", "repo", "file", "revision"),
    [
        ("owner/repo:model.gguf", "owner/repo", "model.gguf", "main"),
        ("owner/My.Repo-GGUF:Q4/My_Model-Q4_K_M.gguf@v1.0", "owner/My.Repo-GGUF", "Q4/My_Model-Q4_K_M.gguf", "v1.0"),
        ("repo:model.gguf", "repo", "model.gguf", "main"),
    ],
)
def test_an_address_at_the_hub_is_a_model(address: str, repo: str, file: str, revision: str) -> None:
    entry = Catalog().entry(address)
    assert entry.source == Source(hub=repo, file=file, revision=revision)
    assert entry.is_bare


@pytest.mark.parametrize(
    "address", ["a/b/c:m.gguf", "owner/repo:../m.gguf", "owner/repo:model.bin", ":m.gguf", "-a/b:m.gguf"]
)
def test_what_is_no_address_is_a_path_or_an_unknown_name(address: str) -> None:
    with pytest.raises((ConfigError, ModelFileError)):
        Catalog().entry(address)


def test_an_entry_that_is_an_address_learns_from_the_file(tmp_path: Path) -> None:
    """What a path gives at once, an address gives once its file is here; what an entry says itself is kept."""
    path = small_gguf.write(tmp_path / "m.gguf", "smollm3")
    found = Catalog(model_dir=str(tmp_path)).entry("owner/repo:m.gguf")
    assert found.source.path == str(path), "MODEL_DIR is looked into before the hub is asked"
    header = gguf_header.read(path)
    known = catalog.completed(found, header)
    assert (known.thinking, known.tools, known.is_bare) == (Catalog().entries["smollm3-3b"].thinking, "hermes", False)
    assert known == catalog.entry_of_path(path)
    named = Catalog().entries["smollm3-3b"]
    assert catalog.completed(named, header) is named


def test_model_dir_is_a_setting(tmp_path: Path) -> None:
    small_gguf.write(tmp_path / "SmolLM3-Q4_K_M.gguf")
    found = Catalog.of(config.load({"MODEL_DIR": str(tmp_path)}))
    assert found.resolve(found.entry("smollm3-3b")).path == tmp_path / "SmolLM3-Q4_K_M.gguf"


def test_a_package_that_is_not_installed_is_named() -> None:
    assert not catalog.is_at_hand(Source(package="no_such_package", file="x.gguf"))
    entry = catalog.CatalogEntry(
        name="m", title="M", source=Source(package="no_such_package", file="x"), context_tokens=512
    )
    with pytest.raises(ModelFileError, match="no_such_package"):
        catalog.resolve(entry)


def test_nothing_named_means_the_large_model_where_it_is_and_else_the_small_one_and_says_so(tmp_path: Path) -> None:
    chosen = Catalog(model_dir=str(tmp_path)).entry("")
    if chosen.name == "smollm2-135m":  # a developer's machine may hold the large one already
        assert "SmolLM3 3B is not on this machine" in chosen.notes[0]
    small_gguf.write(tmp_path / "SmolLM3-Q4_K_M.gguf")
    chosen = Catalog(model_dir=str(tmp_path)).entry("")
    assert chosen.name == "smollm3-3b"
    assert chosen.source.path.startswith(str(tmp_path))
    assert "was found" in chosen.notes[0]
