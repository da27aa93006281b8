"""Home folders that nobody has, and where the cache is then."""

import os
import pwd
import stat
import tempfile
from pathlib import Path

import pytest
from root_powers import without_root_powers

from jaxformer.config import DataConfig
from jaxformer.data.corpus_cache import cache_directory
from jaxformer.data.text_files import TextSource
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import InputError
from jaxformer.files.user_paths import cache_folder, expand_user, private_temporary_folder


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    """No HOME, no name of the user; temporary files in `tmp_path`."""

    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "JAXFORMER_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    private_temporary_folder.cache_clear()
    yield
    private_temporary_folder.cache_clear()


def test_a_home_folder_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert expand_user("~/data", "data.root") == Path("/home/me/data")
    assert expand_user("data/~x", "data.root") == Path("data/~x")


def test_a_home_folder_that_is_not_there(nobody):
    with pytest.raises(InputError, match="data.root=~/data: ~ has no home.*set HOME"):
        expand_user("~/data", "data.root")


@pytest.mark.parametrize(
    ("field", "open_it"),
    [
        ("data.root", lambda: TextSource(DataConfig(source="text", root="~nobodyx/data"))),
        ("data.cache_dir", lambda: cache_directory(DataConfig(cache_dir="~nobodyx/data"))),
        ("tokenizer.model_file", lambda: Tokenizer.load("~nobodyx/data")),
    ],
)
def test_each_option_names_itself(field, open_it):
    with pytest.raises(InputError, match=f"{field}=~nobodyx/data: ~nobodyx "):
        open_it()


def test_the_named_cache_is_taken_as_it_is(monkeypatch):
    monkeypatch.setenv("JAXFORMER_CACHE", "/nowhere/at/all")
    assert cache_folder() == Path("/nowhere/at/all")
    monkeypatch.setenv("JAXFORMER_CACHE", "~nobodyx/cache")
    with pytest.raises(InputError, match="JAXFORMER_CACHE=~nobodyx/cache"):
        cache_folder()


def test_a_cache_in_the_home_folder(nobody, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "jaxformer"


def test_without_a_home_the_cache_is_private_and_always_the_same(nobody, tmp_path):
    folder = cache_folder()
    assert folder == tmp_path / f"jaxformer-{os.getuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    private_temporary_folder.cache_clear()
    assert cache_folder() == folder


def test_a_home_that_cannot_be_written_is_none(nobody, monkeypatch, tmp_path):
    home = tmp_path / "home"
    home.mkdir(0o555)
    monkeypatch.setenv("HOME", str(home))
    with without_root_powers():
        assert cache_folder() == tmp_path / f"jaxformer-{os.getuid()}"


@pytest.mark.parametrize("taken", ["open", "link", "file"])
def test_a_name_that_someone_has_taken_is_not_used(nobody, tmp_path, taken):
    """Compiled programs are code: nobody else may put them there."""
    name = tmp_path / f"jaxformer-{os.getuid()}"
    if taken == "open":
        name.mkdir()
        name.chmod(0o777)
    elif taken == "link":
        (tmp_path / "elsewhere").mkdir(0o700)
        name.symlink_to("elsewhere")
    else:
        name.touch(0o600)
    folder = cache_folder()
    assert folder.parent == tmp_path and folder != name
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and cache_folder() == folder
