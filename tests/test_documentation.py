"""What the pages say is so: their code runs, their shapes are right, their links lead somewhere."""

import re
from pathlib import Path

import pytest

from jaxformer.config import field_types

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_code_of_the_module_guide_gives_the_shapes_it_says():
    text = (ROOT / "docs" / "modules.md").read_text("utf-8")
    names = {}
    checked = 0
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(block, names)
        for expression, shape in re.findall(r"^(.+\.shape)  # (\([\d, ]+\))", block, re.M):
            assert str(eval(expression, names)) == shape
            checked += 1
    assert checked == 6


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


def test_every_path_the_readme_names_exists():
    text = (ROOT / "README.md").read_text("utf-8")
    paths = re.findall(r"`((?:jaxformer|configs|docs)/[\w./]*)`", text)
    assert len(paths) >= 9
    for path in paths:
        assert (ROOT / path).exists(), path


def test_every_path_of_the_architecture_exists():
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    for folder in re.findall(r"^  (\w+)/ ", text, re.M):
        assert (ROOT / "jaxformer" / folder).is_dir(), folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_config_field_that_is_named_exists(page):
    sections = {name.split(".")[0] for name in field_types() if "." in name}
    pattern = rf"(?:--config\.|`)((?:{'|'.join(sections)})\.\w+)"
    named = re.findall(pattern, page.read_text("utf-8"))
    for name in named:
        assert name in field_types() or name == "tokenizer.model", name


def test_every_field_has_a_comment_or_says_enough_by_name():
    files = [
        ROOT / "jaxformer" / name for name in ("config.py", "config_sections.py", "model_config.py")
    ]
    source = "".join(file.read_text("utf-8") for file in files)
    fields = re.findall(r"^    (\w+): (?:int|float|str|bool) = [^#\n]*(#.*)?$", source, re.M)
    silent = {name for name, comment in fields if not comment}
    assert len(fields) >= 50
    assert silent <= {
        "num_encoder_layers",
        "num_decoder_layers",
        "source_language",
        "target_language",
        "warmup_steps",
        "b1",
        "b2",
        "epsilon",
        "seed",
    }
