"""A manifest knows every file of a checkpoint: nothing of it changes unseen."""

import json
import re
import shutil
import zlib

import pytest

from jaxformer.errors import InputError
from jaxformer.storage.manifest import (
    MANIFEST,
    describe,
    has_part,
    read_manifest,
    require_verified,
    verify,
    write_manifest,
)

FILES = {
    "_METADATA": b"{}",
    "params/d/0a1b": bytes(range(256)) * 9000,  # more than one chunk
    "params/manifest.ocdbt": b"\x00",
    "meta/metadata": '{"é": 1}'.encode(),
    "metrics/empty": b"",
}


@pytest.fixture
def folder(tmp_path):
    """A checkpoint folder of `FILES` with its manifest."""
    for name, content in FILES.items():
        (tmp_path / "300" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "300" / name).write_bytes(content)
    assert write_manifest(tmp_path / "300") == sum(map(len, FILES.values()))
    return tmp_path / "300"


def test_it_lists_every_file(folder):
    assert verify(folder) == []
    require_verified(folder)
    stored = json.loads((folder / MANIFEST).read_text())
    assert stored["algorithm"] == "crc32"
    assert stored["total_bytes"] == sum(map(len, FILES.values()))
    assert stored["files"] == {
        name: [len(content), f"{zlib.crc32(content):08x}"] for name, content in FILES.items()
    }
    assert list(stored["files"]) == sorted(FILES)
    assert {name: tuple(one) for name, one in read_manifest(folder).items()} == {
        name: tuple(one) for name, one in stored["files"].items()
    }
    assert has_part(folder, "params") and not has_part(folder, "ema")
    before = (folder / MANIFEST).read_bytes()
    write_manifest(folder)
    assert (folder / MANIFEST).read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [MANIFEST, "_METADATA", "params", "meta", "metrics"]
    )


def test_a_copy_is_as_good_as_the_original(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "link").symlink_to(folder)
    assert verify(tmp_path / "copy") == verify(tmp_path / "link") == []


@pytest.mark.parametrize("name", [name for name, content in FILES.items() if content])
def test_a_flipped_bit_is_found_in_any_file(folder, name):
    content = FILES[name]
    for place in {0, len(content) // 2, len(content) - 1}:
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        (folder / name).write_bytes(damaged)
        assert verify(folder) == [f"{name}: another crc32 than when it was saved"]
    (folder / name).write_bytes(content[: len(content) // 2])
    size = len(content)
    assert verify(folder) == [f"{name}: {size // 2:,} bytes instead of {size:,}"]
    (folder / name).unlink()
    assert verify(folder) == [f"{name}: missing"]
    with pytest.raises(InputError, match=rf"300 is not a good checkpoint: {name}: missing; "):
        require_verified(folder)
    (folder / name).mkdir()
    assert verify(folder) == [f"{name}: missing"]


def test_a_file_that_does_not_belong_there_is_found(folder):
    (folder / "params" / "d" / "0a1c").write_bytes(b"")
    assert verify(folder) == [f"params/d/0a1c: not in {MANIFEST}"]
    assert verify(folder, ("meta",)) == []


def test_a_lost_folder_is_found_by_its_files(folder):
    shutil.rmtree(folder / "params")
    assert verify(folder) == ["params/d/0a1b: missing", "params/manifest.ocdbt: missing"]
    assert verify(folder, ("params",)) == verify(folder)
    assert verify(folder, ("meta", "metrics")) == []
    assert has_part(folder, "params")


def test_every_changed_byte_of_the_manifest_itself_is_found(folder):
    content = (folder / MANIFEST).read_bytes()
    for place in range(len(content)):
        for bit in (0, 5):  # 5 changes letters between small and large
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            (folder / MANIFEST).write_bytes(damaged)
            assert verify(folder) == [f"{MANIFEST}: damaged"], (place, bit)
    for damaged in (b"", content[:-1], content + b"\n", b"[]", b'{"files": {"a": 1}}'):
        (folder / MANIFEST).write_bytes(damaged)
        assert verify(folder) == [f"{MANIFEST}: damaged"]
    (folder / MANIFEST).unlink()
    assert verify(folder) == verify(folder / "nowhere") == [f"{MANIFEST}: missing"]
    with pytest.raises(InputError, match=r"--workdir=\.\.\. --accept$"):
        require_verified(folder)


def test_a_file_that_cannot_be_read_is_a_problem(folder, monkeypatch):
    def fail(path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("jaxformer.storage.manifest._record", fail)
    problems = verify(folder)
    assert len(problems) == len(FILES)
    assert all(re.fullmatch(r"\S+: cannot be read \(.*Input/output error\)", p) for p in problems)


def test_many_problems_are_cut_and_counted():
    assert describe(["a: missing", "b: missing"]) == "a: missing, b: missing"
    assert describe([f"{n}: missing" for n in "abcdef"]).endswith("d: missing, and 2 more")
