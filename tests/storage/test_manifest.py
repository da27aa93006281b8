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
    read_json,
    read_manifest,
    require_verified,
    stray_files,
    verify,
    write_manifest,
)

FILES = {
    "notes": b"{}",
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
        [MANIFEST, "notes", "params", "meta", "metrics"]
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
        (problem,) = verify(folder)
        assert problem.startswith(f"{name}: ") and "crc32" in problem
    (folder / name).write_bytes(content[: len(content) // 2])
    size = len(content)
    assert verify(folder) == [f"{name}: {size // 2:,} bytes instead of {size:,}"]
    (folder / name).unlink()
    assert verify(folder) == [f"{name}: missing"]
    with pytest.raises(InputError, match=f"/300 .*{name}: missing; .*--checkpoint"):
        require_verified(folder)
    (folder / name).mkdir()
    assert verify(folder) == [f"{name}: missing"]


STRAYS = (
    ".DS_Store", ".nfs000000000001", "Thumbs.db", "._meta", "notes.txt", "lost+found/part",
    "params/.DS_Store", "params/d/0a1c", "params/array_metadatas/.process_0",
    "params/._manifest.ocdbt", "meta/metadata.bak", "metrics/.nfs0001", "state/_METADATA",
)  # fmt: skip


@pytest.mark.parametrize("name", STRAYS)
def test_a_file_that_nothing_reads_does_no_harm(folder, name):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"stray")
    assert verify(folder) == []
    require_verified(folder, ("params", "meta"))
    assert stray_files(folder) == [name]


READ = (
    "_CHECKPOINT_METADATA", "params/_METADATA", "params/_CHECKPOINT_METADATA", "params/_sharding",
    "params/checkpoint", "params/array_metadatas/process_0", "params/array_metadatas/process_x",
    "optimizer/manifest.ocdbt", "ema/_METADATA", "metrics/metrics",
)  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_a_file_that_would_be_read_has_to_be_listed(folder, name):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"{}")
    assert verify(folder) == [f"{name}: not in {MANIFEST}"]
    assert verify(folder, (name.partition("/")[0],)) == verify(folder)
    assert verify(folder, ("meta",)) == []
    with pytest.raises(InputError, match=name):
        require_verified(folder)


def test_only_json_that_is_listed_is_read(folder):
    assert read_json(folder, "meta/metadata") == {"é": 1}
    assert read_json(folder, "steps/steps") == {}
    (folder / "steps").mkdir()
    (folder / "steps" / "steps").write_text('{"not": "listed"}')
    assert read_json(folder, "steps/steps") == {}
    (folder / "metrics" / "metrics").write_text("{}")
    with pytest.raises(InputError, match=f"metrics/metrics: .*{MANIFEST}"):
        read_json(folder, "metrics/metrics")
    for text in ("[1]", "{", "\udc80"):
        (folder / "meta" / "metadata").write_bytes(text.encode("utf-8", "surrogateescape"))
        (folder / MANIFEST).unlink()
        write_manifest(folder)  # as `verify --accept` does, whatever is in it
        with pytest.raises(InputError, match=f"{folder} .*: meta/metadata: "):
            read_json(folder, "meta/metadata")


def test_what_file_systems_leave_is_never_listed(folder):
    for name in (".nfs0001", "params/.DS_Store", "params/d/._0a1b", "meta/Thumbs.db"):
        (folder / name).write_bytes(b"gone tomorrow")
    write_manifest(folder)
    assert sorted(read_manifest(folder)) == sorted(FILES)


def test_a_link_that_leads_nowhere_is_named_with_its_target(tmp_path):
    (tmp_path / "300").symlink_to(tmp_path / "unmounted")
    (problem,) = verify(tmp_path / "300")
    assert problem.startswith(f"{MANIFEST}: missing") and str(tmp_path / "unmounted") in problem


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
    assert all(re.fullmatch(r"\S+: .*Input/output error.*", problem) for problem in problems)


def test_many_problems_are_cut_and_counted():
    assert describe(["a: missing", "b: missing"]) == "a: missing, b: missing"
    assert describe([f"{n}: missing" for n in "abcdef"]).endswith("d: missing, and 2 more")
