"""Translation datasets of TensorFlow Datasets, prepared and read without TensorFlow."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from jaxformer.config import DataConfig
from jaxformer.errors import InputError
from jaxformer.files.user_paths import expand_user

_CHUNK = 1024  # examples read at once
_PROBE_SECONDS = 10  # to wait for a host before giving up a download


def _import_tfds() -> Any:
    if find_spec("tensorflow_datasets") is None:
        raise InputError("data.source='tfds' also needs: pip install tensorflow-datasets")
    import tensorflow_datasets as tfds

    # Without this import, the loop that fills the registry stops at the first dataset that lacks a
    # dependency, and wmt* are unknown.
    import tensorflow_datasets.translate  # noqa: F401

    import jaxformer.data.tfds_builder  # noqa: F401 - registers jaxformer_en_fr

    return tfds


@contextmanager
def _extractor_without_tensorflow() -> Iterator[None]:
    """Replace the two TensorFlow functions that TFDS's archive extractor uses.

    Does nothing if TensorFlow is installed or the extractor no longer uses it.
    """
    if find_spec("tensorflow") is not None:
        yield
        return
    try:
        from tensorflow_datasets.core.download import extractor
    except ImportError as error:
        raise InputError(
            f"this version of tensorflow_datasets has no core.download.extractor ({error}); "
            "pip install tensorflow-datasets==4.9.10, or prepare the data with TensorFlow installed"
        ) from error
    if not hasattr(extractor, "tf"):
        yield
        return
    lazy_module = extractor.tf
    extractor.tf = SimpleNamespace(
        compat=SimpleNamespace(as_text=lambda x: x.decode() if isinstance(x, bytes) else x),
        io=SimpleNamespace(gfile=SimpleNamespace(GFile=lambda path, mode="r": open(path, mode))),
    )
    try:
        yield
    finally:
        extractor.tf = lazy_module


class _DownloadRecorder:
    """Replaces TFDS's download manager: records requested URLs and downloads nothing."""

    def __init__(self, manual_dir: Path):
        self.manual_dir = manual_dir
        self.urls: list[str] = []

    def download(self, urls: Any) -> Any:
        if isinstance(urls, dict):
            return {key: self.download(value) for key, value in urls.items()}
        if isinstance(urls, (list, tuple)):
            return [self.download(value) for value in urls]
        url = getattr(urls, "url", urls)
        if url not in self.urls:
            self.urls.append(url)
        return Path(os.path.basename(url))

    download_and_extract = download

    def extract(self, paths: Any) -> Any:
        return paths


def _missing_downloads(builder: Any) -> dict[str, Any]:
    """URL -> registered `UrlInfo` (or None) of what `builder` would have to download."""
    from tensorflow_datasets.core.download import resource

    downloads = Path(builder.data_dir_root) / "downloads"
    recorder = _DownloadRecorder(downloads / "manual")
    try:
        builder._split_generators(recorder)
    except Exception:  # a builder that opens its files immediately; its first requests are known
        pass
    infos = builder.url_infos or {}
    missing = {}
    for url in recorder.urls:
        info = infos.get(url)
        names = [resource.get_dl_fname(url)]
        places = [downloads, downloads / builder.name]
        if info is not None:
            names.append(resource.get_dl_fname(url, info.checksum))
        found = any((place / name).exists() for place in places for name in names)
        if info is not None and info.filename:
            found = found or (downloads / "manual" / info.filename).exists()
        if not found:
            missing[url] = info
    return missing


def _unreachable(urls: list[str]) -> str:
    """Why a host of `urls` does not answer; "" if all do. One short try per host, with proxies."""
    import requests

    hosts = {urlsplit(url).netloc: url for url in urls if urlsplit(url).scheme in ("http", "https")}
    for host, url in hosts.items():
        try:
            requests.head(url, timeout=_PROBE_SECONDS, allow_redirects=False)
        except requests.RequestException as error:
            return f"{host} cannot be reached ({type(error).__name__})"
    return ""


def _megabytes(info: Any) -> str:
    return f"{info.size / 1e6:,.0f} MB" if info is not None else "size unknown"


def _not_prepared(builder: Any, missing: dict[str, Any], why: str) -> InputError:
    root = Path(builder.data_dir_root)
    name = builder.info.full_name.rsplit("/", 1)[0]
    code = f"from jaxformer.data.tfds_source import prepare; prepare({name!r}, 'DIR')"
    lines = [f"data.name={name!r} is not prepared in {root}, and preparing it failed: {why}"]
    if missing:
        lines += [f"Put these files into {root / 'downloads' / 'manual'} and run again:"]
        for url, info in missing.items():
            filename = info.filename if info is not None and info.filename else "(name unknown)"
            lines.append(f"  {filename}  {_megabytes(info)}  from {url}")
    lines += [
        "Or prepare it once on a machine with network access, with",
        f"  python -c {shlex.quote(code)}",
    ]
    return InputError("\n".join([*lines, f"and copy DIR/{name} to {root / name}"]))


def _open_builder(name: str, data_dir: str) -> Any:
    tfds = _import_tfds()
    try:
        folder = str(expand_user(data_dir, "data.root")) if data_dir else None
        return tfds.builder(name, data_dir=folder)
    except tfds.core.DatasetNotFoundError as error:
        raise InputError(
            f"data.name={name!r}: TFDS has no such dataset, and none is prepared under "
            f"{data_dir or 'its default data_dir'}; names look like wmt14_translate/de-en "
            "or ted_hrlr_translate/pt_to_en"
        ) from error
    except (ValueError, TypeError, ImportError) as error:
        raise InputError(f"data.name={name!r}: TFDS cannot open it: {error!s:.1000}") from error


def prepare(name: str, data_dir: str = "") -> Any:
    """Return the TFDS builder of `name`, its data prepared as array_record under `data_dir`.

    Archives under `<data_dir>/downloads/manual/` are used; others are downloaded, which is
    announced. Without a network this fails immediately.

    Args:
      name: dataset and config, e.g. `ted_hrlr_translate/pt_to_en`.
      data_dir: "" is TFDS's own default.

    Returns:
      The builder.

    Raises:
      InputError: no such dataset, or it cannot be prepared; the message lists the missing files.
    """
    builder = _open_builder(name, data_dir)
    if builder.is_prepared():
        return builder
    if find_spec("importlib_resources") is None:
        raise InputError("preparing TFDS data also needs: pip install importlib_resources")
    tfds = _import_tfds()
    missing = _missing_downloads(builder)
    if missing:
        print(
            f"downloading {len(missing)} files for {name}: "
            + ", ".join(f"{url} ({_megabytes(info)})" for url, info in missing.items()),
            file=sys.stderr,
            flush=True,
        )
        why = _unreachable(list(missing))
        if why:
            raise _not_prepared(builder, missing, why)
    print(f"preparing {name} in {builder.data_dir} ...", file=sys.stderr, flush=True)
    tfds.display_progress_bar(sys.stderr.isatty())
    try:
        with _extractor_without_tensorflow():
            builder.download_and_prepare(
                file_format="array_record",
                download_config=tfds.download.DownloadConfig(try_download_gcs=False),
            )
    except InputError:
        raise
    except Exception as error:  # builders raise all kinds: assertions, HTTP, checksums, tar
        builder = _open_builder(name, data_dir)
        if builder.is_prepared():  # another process was faster
            return builder
        why = f"{type(error).__name__}: {error}"
        raise _not_prepared(builder, missing, why) from error
    return builder


class TfdsSource:
    """A TFDS translation dataset; `data.train`, `validation` and `test` are TFDS splits.

    Raises:
      InputError: the dataset, a language or a named split does not exist, or preparing it failed.
    """

    def __init__(self, config: DataConfig):
        self._name = config.name
        self._builder = prepare(config.name, config.root)
        self._languages = (config.source_language, config.target_language)
        self._check_languages()
        self._splits: dict[str, str] = {}
        there = self._builder.info.splits
        for split, wanted, usual in (
            ("train", config.train, ()),
            ("validation", config.validation, ("validation", "valid", "dev")),
            ("test", config.test, ("test",)),
        ):
            expression = wanted or next((name for name in usual if name in there), "")
            if expression:
                self._check_split(split, expression)
                self._splits[split] = expression
        self.splits = tuple(self._splits)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Stream the pairs of `split` in the order of the prepared files."""
        return self._read(self._open_split(self._split(split)))

    def _read(self, examples: Any) -> Iterator[tuple[str, str]]:
        source_language, target_language = self._languages
        for start in range(0, len(examples), _CHUNK):
            chunk = range(start, min(start + _CHUNK, len(examples)))
            for example in examples.__getitems__(chunk):
                one, other = example[source_language], example[target_language]
                yield one.decode("utf-8"), other.decode("utf-8")

    def fingerprint(self, split: str) -> str:
        expression = self._split(split)
        info = self._builder.info
        shards = sorted(Path(self._builder.data_dir).glob("*.array_record*"))
        parts = [
            info.full_name,
            *self._languages,
            expression,
            str(info.splits[expression].num_examples),
            *(f"{path.name} {path.stat().st_size}" for path in shards),
        ]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    def describe(self, split: str) -> str:
        return f"TFDS {self._builder.info.full_name}, split {self._split(split)}"

    def _split(self, split: str) -> str:
        if split not in self._splits:
            raise InputError(
                f"data.name={self._name!r} has no {split} split; it has "
                f"{', '.join(self._builder.info.splits)}; set data.{split} to one of them"
            )
        return self._splits[split]

    def _check_languages(self) -> None:
        features = list(self._builder.info.features)
        for field, language in zip(("source", "target"), self._languages, strict=True):
            if language not in features:
                raise InputError(
                    f"data.{field}_language={language!r}: data.name={self._name!r} has the "
                    f"languages {', '.join(sorted(features))}"
                )

    def _check_split(self, split: str, expression: str) -> None:
        splits = self._builder.info.splits
        try:
            count = splits[expression].num_examples
        except (KeyError, ValueError) as error:
            raise InputError(
                f"data.{split}={expression!r}: data.name={self._name!r} has the splits "
                f"{', '.join(splits)}"
            ) from error
        if not count:
            raise InputError(f"data.{split}={expression!r}: the split of {self._name!r} is empty")
        self._open_split(expression)

    def _open_split(self, expression: str) -> Any:
        try:
            return self._builder.as_data_source(split=expression)
        except NotImplementedError as error:
            raise InputError(
                f"data.name={self._name!r} in {self._builder.data_dir} is stored as "
                f"{self._builder.info.file_format.value}, which has no random access; prepare it "
                "again as array_record, in another data.root or after moving that folder away"
            ) from error
