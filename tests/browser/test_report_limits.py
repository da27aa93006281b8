"""What the report keeps out, endures and looks like: policy, hostile text, sizes, themes."""

import json

import pytest
from report_example import detokenized, example_report, example_sentence

from jaxformer.visualization.page import render_page

pytestmark = pytest.mark.browser


def drawn_rows(page):
    return page.locator(".lines path").evaluate_all("all => all.map((p) => Number(p.dataset.row))")


def texts(locator):
    return locator.evaluate_all("all => all.map(one => one.textContent)")


def test_every_control_has_a_name_and_every_id_is_one(open_report, report):
    page = open_report(report)
    nameless = page.locator("button, select, input, canvas[tabindex], a").evaluate_all(
        """all => all.filter((node) => !(node.getAttribute('aria-label')
          || node.textContent.trim() || node.labels?.[0]?.textContent.trim())).length"""
    )
    assert nameless == 0
    ids = page.locator("[id]").evaluate_all("all => all.map((node) => node.id)")
    assert len(ids) == len(set(ids))
    targets = page.locator("a[href^='#']").evaluate_all(
        "all => all.map((a) => a.getAttribute('href').slice(1))"
    )
    targets += page.locator("svg a").evaluate_all("all => all.map((a) => a.dataset.target)")
    assert set(targets) <= {*ids, ""}


def test_theme_follows_the_system_and_the_button(open_report, report):
    page = open_report(report, theme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    pixel = """() => { const drawn = document.querySelector('.head-map canvas');
      const canvas = document.createElement('canvas');
      const context = canvas.getContext('2d', { willReadFrequently: true });
      context.drawImage(drawn, 0, 0);
      return [...context.getImageData(drawn.width - 1, 0, 1, 1).data]; }"""
    assert page.evaluate(ground) == "rgb(18, 21, 25)" and max(page.evaluate(pixel)[:3]) < 90
    page.locator("#theme").click()
    assert page.evaluate(ground) == "rgb(250, 248, 244)" and min(page.evaluate(pixel)[:3]) > 165
    assert page.locator("#theme").get_attribute("aria-label") == "Change to dark colours"


def test_policy_keeps_scripts_and_requests_out(open_report, report):
    page = open_report(report)
    answered = []
    page.on("requestfinished", lambda asked: answered.append(asked.url))
    outcome = page.evaluate(
        """async () => {
          const script = document.createElement('script');
          script.append('window.harmed = 1');
          document.body.append(script);
          const image = new Image();
          const blocked = new Promise((done) => { image.onerror = () => done('blocked'); });
          image.src = 'https://example.org/x.png';
          const fetched = await fetch('https://example.org/').then(() => 'sent', () => 'blocked');
          let markup = 'made';
          try { document.body.innerHTML = '<b>x</b>'; } catch { markup = 'blocked'; }
          return [window.harmed ?? 'blocked', await blocked, fetched, markup];
        }"""
    )
    assert outcome == ["blocked"] * 4
    assert answered == []
    # The browser tells of the image that was asked for before it refuses to ask.
    assert [text for text in open_report.complaints if text.startswith("request:")] == [
        "request: https://example.org/x.png"
    ]
    open_report.complaints.clear()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_screenshots_and_no_sideways_scrolling(open_report, report, tmp_path, width, theme):
    page = open_report(report, width=width, theme=theme)
    page.locator(".query .word").nth(9).click()
    page.locator("#target-pieces .chip").nth(6).click()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    image = page.screenshot(path=tmp_path / f"report-{width}-{theme}.png", full_page=True)
    assert len(image) > 100_000


HOSTILE = [
    "</script><script>window.harmed=1</script>",
    "<img/src=x/onerror=window.harmed=2>",
    "\"'`&amp;<b>",
    "שלום",
    "مرحبا",
    "\u202eabc",
    "e\u0301\u0323\u0316",
    "👩\u200d👩\u200d👧",
    "🇫🇷",
    "\u2028",
    "{{script}}",
    "__proto__",
]


def test_hostile_text_is_text(open_report):
    pieces = [f"▁{text}" for text in HOSTILE]
    sentence = example_sentence(" ".join(pieces), " ".join(pieces[:4]))
    assert sentence["source"] == detokenized(pieces)
    page = open_report(example_report([sentence]), width=360)
    assert page.locator("dd.source").evaluate("node => node.textContent") == sentence["source"]
    assert texts(page.locator(".query .word")) == [*pieces, "</s>"]
    assert texts(page.locator("#source-pieces .piece")) == [*pieces, "</s>"]
    for index in range(len(pieces)):
        page.locator(".query .word").nth(index).hover()
    assert page.evaluate("window.harmed ?? null") is None
    assert page.locator("main script, main img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_three_hundred_pieces_stay_usable(open_report):
    source = " ".join(f"▁word{i % 60}" for i in range(299))
    target = " ".join(f"▁mot{i % 50}" for i in range(120))
    sentence = example_sentence(source, target, reference=target, d_model=128)
    report = example_report([sentence], d_model=128)
    assert len(render_page(report)) < 20_000_000
    page = open_report(report)
    assert page.locator(".query .word").count() == 300
    assert 0 < len(drawn_rows(page)) <= 3000
    took = page.evaluate(
        """() => { const start = performance.now();
          document.querySelector('.head').click();
          document.querySelectorAll('.query .word')[150].click();
          return performance.now() - start; }"""
    )
    assert took < 10_000  # milliseconds; some tens where nothing else runs
    assert set(drawn_rows(page)) == {150}
    assert page.locator(".beam-tree .node").count() == len(sentence["beam"]["nodes"])
    assert page.evaluate("document.documentElement.scrollWidth") == 1280


def test_a_damaged_array_is_reported_on_the_page(open_report, report):
    damaged = json.loads(json.dumps(report))
    damaged["sentences"] = damaged["sentences"][:2]
    damaged["sentences"][1]["encoder"]["attention"]["shape"][0] += 1
    page = open_report(damaged)
    page.locator("#next").click()
    page.get_by_role("alert").wait_for()
    assert "bytes, not" in page.get_by_role("alert").inner_text()
    assert any("bytes, not" in text for text in open_report.complaints)
    open_report.complaints.clear()
