"""From a model to the screen: what the page shows is what the model computed and translated."""

import numpy as np
import pytest
from random_translator import TEXT, make_translator, small_model

from jaxformer.config import Config
from jaxformer.visualization.page_data import page_data
from jaxformer.visualization.trace import trace_sentence

pytestmark = pytest.mark.browser

HOSTILE = '</script><script>window.harmed = 1</script> "the" שלום e\u0301 👩\u200d👧'


@pytest.mark.parametrize(
    "changes", [{}, {"norm": "pre", "positions": "rotary"}], ids=["post_norm", "pre_norm_rotary"]
)
def test_page_shows_what_the_model_computed(open_report, check_arrays, parameters_of, changes):
    config = small_model(**changes)
    translator = make_translator(parameters_of, config)
    lines = [TEXT, HOSTILE]
    traces = [trace_sentence(translator, line, "le chat dort") for line in lines]
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    page = open_report(page_data(traces, Config(model=config), tokenizers, "best"))
    for number, (line, trace) in enumerate(zip(lines, traces, strict=True)):
        if number:
            page.locator("#next").click()
            page.locator("dd.source", has_text="window.harmed").wait_for()
        shown = page.locator("#sentence dd").evaluate_all("all => all.map((d) => d.textContent)")
        assert shown == [line, translator(line), "le chat dort"]
        assert page.locator("#cut").is_visible() == trace.hypotheses[0].truncated
        check_arrays(page, number, lambda side, name, t=trace: getattr(getattr(t, side), name))
        log_probs = page.locator("#next-piece .chip").evaluate_all(
            "chips => chips.map((chip) => Number(chip.dataset.logProb))"
        )
        reference = trace.reference_trace
        expected = reference.log_probs[np.arange(len(reference.ids)), reference.ids]
        np.testing.assert_allclose(log_probs, expected, atol=1e-6)
    assert page.evaluate("window.harmed ?? null") is None
    if changes:
        assert page.locator("#source-vectors .strip").count() == 1
        assert page.locator("#encoder-layers .strip").count() == 3  # two layers and the final norm
        assert page.locator(".model-figure .norm").count() == 10  # each with an Add beside it
    else:
        assert page.locator("#source-vectors .strip").count() == 3
        assert page.locator(".model-figure .norm").count() == 5


def test_a_translation_over_max_length_is_said_to_be_cut(open_report, parameters_of):
    limits = {"max_length_factor": 0.0, "max_length_extra": 3}
    translator = make_translator(parameters_of, **limits)
    trace = trace_sentence(translator, TEXT)
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    page = open_report(page_data([trace], Config(model=translator.model.config), tokenizers, "1"))
    assert page.locator("#target-pieces .chip").count() == 3
    assert page.locator("#cut").is_visible()
    assert "length limit" in page.locator("#cut").inner_text()
    cut = sum(hypothesis.truncated for hypothesis in trace.hypotheses)
    assert page.locator(".returned .cut").count() == cut > 0
