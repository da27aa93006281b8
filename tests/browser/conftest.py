"""Chromium without a window, and pages in it that must not complain or ask for anything."""

import os
import shutil

import numpy as np
import pytest
from report_example import example_report

from jaxformer.visualization.page import render_page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
UNPACKED = """async ([sentence, side, name]) => {
  const packed = jaxformer.report.sentences[sentence][side][name];
  const { shape, values } = await jaxformer.unpack(packed);
  return { shape, values: Array.from(values) };
}"""
ARRAYS = {
    "encoder": ("embedding", "positions", "sum", "layers", "attention"),
    "decoder": ("embedding", "positions", "sum", "layers", "self_attention", "cross_attention"),
}
TIMEOUT = 120_000  # milliseconds; generous, for machines that do other work too


@pytest.fixture(scope="session")
def chromium():
    """The system's Chromium, or what JAXFORMER_BROWSER names; without one these tests fail."""
    from playwright.sync_api import sync_playwright

    found = os.environ.get("JAXFORMER_BROWSER") or next(
        filter(None, map(shutil.which, BROWSERS)), None
    )
    if not found:
        pytest.fail(f"no {', '.join(BROWSERS)} on PATH; install one or set JAXFORMER_BROWSER")
    with sync_playwright() as playwright:
        # Chromium's own sandbox needs rights that containers do not give.
        browser = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox"], timeout=TIMEOUT
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def report():
    return example_report()


@pytest.fixture
def open_report(chromium, tmp_path):
    """open_report(data or file, width=1280, theme="light", before=""): the page, shown from disk.

    `before` is JavaScript that runs before the page's own.

    At the end of the test no page may have written to the console, raised, opened a dialog or
    asked for anything but its own file.
    """
    contexts, complaints = [], []

    def open_page(source, width=1280, height=900, theme="light", before="", **options):
        path = source
        if isinstance(source, dict):
            path = tmp_path / f"report-{len(contexts)}.html"
            path.write_bytes(render_page(source).encode("utf-8"))
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            reduced_motion="reduce",
            **options,
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(TIMEOUT)
        page.add_init_script(before)
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (complaints.append("dialog"), dialog.dismiss()))
        page.on("request", lambda asked: note_request(asked.url, path.as_uri()))
        page.goto(path.as_uri())
        page.locator("#main:not([aria-busy]) #lens table").wait_for()
        return page

    def note_request(url, own):
        if url.split("#")[0] != own and not url.startswith("data:"):
            complaints.append(f"request: {url}")

    open_page.complaints = complaints
    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def check_arrays():
    """check_arrays(page, number, expected): of sentence `number`; `expected(side, name)` is one."""

    def check(page, number, expected):
        for side, names in ARRAYS.items():
            for name in names:
                found = page.evaluate(UNPACKED, [number, side, name])
                values = np.array(found["values"]).reshape(found["shape"])
                np.testing.assert_allclose(values, expected(side, name), atol=1e-6, rtol=0)
                if "attention" in name:
                    np.testing.assert_allclose(values.sum(-1), 1.0, atol=1e-6)

    return check
