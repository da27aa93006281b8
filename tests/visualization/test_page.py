"""The page as text: one document, a policy that fits it, data that stays data. No browser."""

import base64
import hashlib
import json
import math
import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from report_example import example_report, example_sentence

from jaxformer.errors import InputError
from jaxformer.visualization import page, page_data
from jaxformer.visualization.page import SCRIPTS, embedded_json, render_page

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "jaxformer" / "visualization" / "assets"
HOSTILE = (
    '</script><script>window.harmed = 1</script><img src=x onerror="window.harmed = 2">',
    "<!-- <script> {{script}} {{data}} \\u003c/script> ' \" & &amp;",
    "line\u2028separator\u2029paragraph\u0085next\x00null",
    "שלום עולם \u202eabc, e\u0301\u0323, 👩\u200d👩\u200d👧 🇫🇷, \ud800 alone",
)


class Document(HTMLParser):
    """Start tags in order, and the content of style and script elements."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.contents, self.inside = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside = tag if tag in ("style", "script") else None
        if self.inside:
            self.contents.append([tag, dict(attributes), ""])

    def handle_data(self, data):
        if self.inside:
            self.contents[-1][2] += data

    def handle_endtag(self, tag):
        self.inside = None


@pytest.fixture(scope="module")
def report():
    return example_report()


def with_texts(report, texts):
    """The report with other texts where the user's own text stands."""
    changed = json.loads(json.dumps(report))
    sentence = changed["sentences"][0]
    for name, text in zip(("source", "translation", "reference"), texts, strict=False):
        sentence[name] = text
    sentence["source_pieces"][0]["text"] = texts[-1]
    return changed


def test_document_has_the_parts_and_nothing_from_elsewhere(report):
    document = Document(render_page(report))
    names = [tag for tag, _ in document.tags]
    assert names.count("style") == 1 and names.count("script") == 2 and names.count("h2") == 5
    linked = [a for _, a in document.tags if a.keys() & {"src", "href"}]
    for attributes in linked:
        assert attributes["href"].startswith("#") or attributes["href"] == "data:,"
    assert not [a for _, a in document.tags if any(n.startswith("on") or n == "style" for n in a)]


def test_policy_allows_exactly_this_style_and_script(report):
    document = Document(render_page(report))
    policy = next(a["content"] for tag, a in document.tags if tag == "meta" and "http-equiv" in a)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))

    def digest(text):
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    (style,) = [text for tag, _, text in document.contents if tag == "style"]
    script = next(t for tag, a, t in document.contents if tag == "script" and "type" not in a)
    assert rules == {
        "default-src": "'none'",
        "style-src": f"'sha256-{digest(style)}'",
        "script-src": f"'sha256-{digest(script)}'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
    }


def test_policy_stands_before_all_that_it_governs(report):
    names = [tag for tag, _ in Document(render_page(report)).tags]
    assert names.index("meta") < names.index("style") < names.index("script")
    assert Document(render_page(report)).tags[3][1]["http-equiv"] == "Content-Security-Policy"


@pytest.mark.parametrize("text", HOSTILE)
def test_data_comes_out_as_it_went_in(report, text):
    data = with_texts(report, [text] * 4)
    rendered = render_page(data)
    document = Document(rendered)
    assert len([tag for tag, *_ in document.contents if tag == "script"]) == 2
    embedded = next(t for _, a, t in document.contents if a.get("type") == "application/json")
    assert json.loads(embedded) == data
    assert not set(embedded) & set("<>&\u2028\u2029")
    assert "img" not in [tag for tag, _ in document.tags]
    rendered.encode("utf-8")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_refused(report, value):
    data = json.loads(json.dumps(report))
    data["sentences"][0]["score"] = value
    with pytest.raises(InputError, match="not finite"):
        render_page(data)


@pytest.mark.parametrize("version", [0, 1, None, "2"])
def test_another_schema_version_is_refused(report, version):
    with pytest.raises(InputError, match=f"version {version}"):
        render_page(report | {"version": version})


def test_a_report_without_sentences_is_refused(report):
    with pytest.raises(InputError, match="--text"):
        render_page(report | {"sentences": []})


def test_page_reads_the_version_that_page_data_writes():
    assert page.SCHEMA_VERSION == page_data.VERSION


def test_sizes(report):
    empty = len(render_page(report)) - len(embedded_json(report))
    assert empty < 120_000
    one = example_report([report["sentences"][0]])
    assert len(render_page(one)) < 400_000


def test_assets_ask_for_nothing_and_make_no_markup_or_code_from_text():
    files = sorted(ASSETS.iterdir())
    assert {file.name for file in files} == {*SCRIPTS, "page.html", "page.css"}
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser"
        r"|\beval\b|new Function|fetch\(|XMLHttpRequest|WebSocket|EventSource|sendBeacon|Worker\("
        r"|\bimport\b|@import|url\((?!#)|@font-face|localStorage|document\.cookie|srcdoc|javascript:"
    )
    for file in files:
        text = file.read_bytes().decode("utf-8")
        assert re.findall(r"\w+://[^\"'\s]*", text) == (
            ["http://www.w3.org/2000/svg"] if file.name == "elements.js" else []
        ), file.name
        assert not re.findall(forbidden, text), file.name
        assert file.suffix == ".html" or not re.search("</script|</style|<!--|\r", text), file.name
        assert text.count("\n") <= 300 or file.suffix == ".css", file.name


def test_assets_are_in_the_package():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["jaxformer.visualization"]
    found = {file for pattern in patterns for file in (ASSETS.parent).glob(pattern)}
    assert found == set(ASSETS.iterdir())


def colours_of(theme):
    """Custom properties of page.css and the hues of the heads in one theme."""
    style = (ASSETS / "page.css").read_text("utf-8")
    blocks = {"light": r":root \{(.*?)\}", "dark": r':root\[data-theme="dark"\] \{(.*?)\}'}
    named = dict(re.findall(r"--([\w-]+): (#\w{6});", re.search(blocks[theme], style, re.S)[1]))
    script = (ASSETS / "theme.js").read_text("utf-8")
    heads = re.findall(r"#\w{6}", re.search(rf"{theme}: \[(.*?)\]", script)[1])
    assert len(named) >= 10 and len(heads) == 8
    return named, heads


def test_the_dark_colours_are_written_once_and_used_by_button_and_system():
    style = (ASSETS / "page.css").read_text("utf-8")
    assert style.count("color-scheme: dark;") == 1 and "prefers-color-scheme" not in style
    page = render_page(example_report([example_sentence("one", "un")]))
    chosen = re.search(r':root\[data-theme="dark"\] (\{.*?\n\})', page, re.S)[1]
    by_system = re.search(
        r"@media \(prefers-color-scheme: dark\) \{\n"
        r':root:not\(\[data-theme="light"\]\) (\{.*?\n\})\n\}',
        page,
        re.S,
    )[1]
    assert chosen == by_system and "--ground" in chosen


def linear(colour):
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """WCAG 2 contrast ratio."""
    bright = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
    return (bright[1] + 0.05) / (bright[0] + 0.05)


def lab(rgb):
    """CIE L*a*b* of linear sRGB under D65."""
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    x = to_xyz @ rgb / [0.95047, 1.0, 1.08883]
    f = np.where(x > 216 / 24389, np.cbrt(x), (24389 / 27 * x + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


# Linear RGB as seen without the L or the M cone (Machado et al. 2009, severity 1).
VISION = {
    "trichromat": np.eye(3),
    "protanope": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranope": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_lines_stand_out_from_the_ground(theme):
    named, heads = colours_of(theme)
    for ground in ("ground", "panel", "sunken"):
        for text in ("ink", "muted", "accent", "warm"):
            assert contrast(named[text], named[ground]) >= 4.5, (text, ground)
        for colour in heads:
            assert contrast(colour, named[ground]) >= 3.0, (colour, ground)


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_hues_of_heads_are_told_apart(theme, vision):
    _, heads = colours_of(theme)
    seen = [lab(np.clip(VISION[vision] @ linear(colour), 0, 1)) for colour in heads]
    distances = {
        (heads[i], heads[j]): np.linalg.norm(seen[i] - seen[j]) for i in range(8) for j in range(i)
    }
    pair = min(distances, key=distances.get)
    assert distances[pair] >= 15, (pair, distances[pair])


def test_signs_of_a_strip_are_told_apart_by_everybody():
    for theme in ("light", "dark"):
        named, _ = colours_of(theme)
        for matrix in VISION.values():
            below, above = (
                lab(np.clip(matrix @ linear(named[name]), 0, 1)) for name in ("below", "above")
            )
            assert np.linalg.norm(below - above) >= 60


def test_three_hundred_pieces_of_a_base_sized_model_stay_under_twenty_megabytes():
    words = " ".join(f"▁word{i % 40}" for i in range(299))
    shape = {"d_model": 512, "num_heads": 8, "num_encoder_layers": 2, "num_decoder_layers": 2}
    sentence = example_sentence(words, "▁short", **shape)
    assert len(sentence["source_pieces"]) == 300
    assert len(render_page(example_report([sentence], **shape))) < 20_000_000
