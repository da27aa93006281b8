"""What the page reads of a report while it is used, field by field, against the schema."""

import re

import pytest
from report_example import SOURCE, TARGET, example_report, example_sentence

from jaxformer.visualization.page_data import SCHEMA

pytestmark = pytest.mark.browser

# The report comes out of JSON.parse as proxies that note the path of each field that is read.
# Listing the names of an object, as `...object` does, reads nothing by itself.
RECORD = """{
  const reads = new Set();
  const watch = (value, path) => {
    if (value === null || typeof value !== "object") return value;
    return new Proxy(value, { get(target, name) {
      if (typeof name === "symbol") return target[name];
      const isIndex = Array.isArray(target) && /^\\d+$/.test(name);
      if (Array.isArray(target) && !isIndex) return target[name];
      const here = isIndex ? `${path}[]` : `${path}.${name}`;
      if (!isIndex) reads.add(here);
      if (!watched.has(target)) watched.set(target, {});
      return watched.get(target)[name] ??= watch(target[name], here);
    } });
  };
  const watched = new WeakMap();
  const parse = JSON.parse;
  JSON.parse = (text) => watch(parse(text), "report");
  window.readsOfReport = () => [...reads];
}"""


def kind_and_field(path):
    """('Piece', 'text') of 'report.sentences[].source_pieces[].text', by the schema's types."""
    kind = "Report"
    *way, field = path.removeprefix("report.").split(".")
    for step in way:
        name = step.removesuffix("[]" * step.count("[]"))
        found = SCHEMA[kind][name].removesuffix(" | null")
        kind = "Array" if found.startswith("A[") else found.strip("[]")
    return kind, field


def use_everything(page):
    """Every choice, box, slider and node of the sentence in view."""
    for place in ("Attention", "Layer", "Follow"):
        group = page.locator("fieldset", has=page.locator("legend", has_text=place))
        for number in range(group.locator("input").count()):
            group.locator("input").nth(number).check(force=True)
    for label in ("Join pieces into words", "Name rows by the piece they choose"):
        page.get_by_label(label).check()
    page.locator(".query .word").first.hover()
    for slider in page.locator("input[type=range]").all():
        slider.focus()
        page.keyboard.press("End")
    for node in page.locator(".beam-tree .node").all():
        node.focus()
        page.keyboard.press("ArrowRight")
    page.locator(".returned button").last.click()


def cut_sentence():
    sentence = example_sentence("▁Cut ▁short .", "▁Coup é .")
    sentence["truncated"] = sentence["beam"]["returned"][0]["truncated"] = True
    return sentence


@pytest.fixture
def sentences():
    return [
        example_sentence(SOURCE, TARGET, reference=TARGET),
        cut_sentence(),
        example_sentence("▁th anks", "▁merci", beam_width=1),
    ]


def test_the_page_reads_every_field_of_the_schema_and_no_other(open_report, sentences):
    page = open_report(example_report(sentences), before=RECORD)
    use_everything(page)
    for sentence in sentences[1:]:
        page.locator("#next").click()
        page.locator("dd.translation", has_text=sentence["translation"]).wait_for()
        page.locator(f"#lens thead th >> nth={len(sentence['steps'])}").wait_for()
        page.locator(".beam-tree .node").last.focus()
    paths = page.evaluate("readsOfReport()")
    found = {kind_and_field(path) for path in paths}
    written = {(kind, field) for kind, fields in SCHEMA.items() for field in fields}
    assert found - written == set(), sorted(paths)
    assert written - found == {("Report", "version")}  # render_page reads it


def test_a_cut_translation_is_said_to_be_one(open_report, sentences):
    page = open_report(example_report(sentences[:2]))
    assert page.locator("#cut").is_hidden() and page.locator(".returned .cut").count() == 0
    page.locator("#next").click()
    page.locator("#cut").wait_for(state="visible")
    assert re.search("length limit.*--max_length", page.locator("#cut").inner_text())
    page.locator(f"#lens thead th >> nth={len(sentences[1]['steps'])}").wait_for()
    marked = page.locator(".returned li", has=page.locator(".cut"))
    assert marked.count() == 1 and "length limit" in marked.inner_text()
    assert sentences[1]["beam"]["returned"][0]["text"] in marked.inner_text()
    marked.locator("button").click()
    assert "ended by the length limit" in page.locator("#beam .readout").inner_text()
    facts = page.locator("#chosen .readout")
    assert "length limit" not in facts.inner_text()
    page.locator("#target-pieces .chip").last.click()
    assert "The length limit put it here" in facts.inner_text()
    page.locator("#previous").click()
    page.locator("#cut").wait_for(state="hidden")
