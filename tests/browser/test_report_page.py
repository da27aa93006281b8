"""The HTML report in a real browser: what it shows, does when touched, and keeps out."""

import math

import numpy as np
import pytest

from jaxformer.visualization.packed_arrays import unpack

pytestmark = pytest.mark.browser


def lines(page, selector=""):
    """(head, row, column, weight) of the lines that are drawn."""
    found = page.locator(f".lines path{selector}").evaluate_all(
        "paths => paths.map(({dataset: d}) => [d.head, d.row, d.column, d.weight].map(Number))"
    )
    return [tuple(line) for line in found]


def choose(page, legend, value):
    page.locator("#attention fieldset", has=page.locator("legend", has_text=legend)).locator(
        f"input[value='{value}']"
    ).check(force=True)


def texts(locator):
    return locator.evaluate_all("all => all.map(one => one.textContent)")


def test_every_array_in_the_page_is_the_array_of_the_report(open_report, check_arrays, report):
    page = open_report(report)
    for number, sentence in enumerate(report["sentences"]):
        check_arrays(page, number, lambda side, name, s=sentence: unpack(s[side][name]))


def test_heading_and_stations_say_what_the_report_says(open_report, report):
    page = open_report(report)
    sentence = report["sentences"][0]
    heading = texts(page.locator("#sentence dd"))
    assert heading == [sentence[name] for name in ("source", "translation", "reference")]
    stations = page.locator(".station h3")
    assert texts(stations) == [
        "Pieces",
        "Embedding and position",
        "Encoder layers",
        "The translation so far",
        "Embedding and position",
        "Decoder layers",
        "Linear",
        "Softmax",
        "The chosen piece",
    ]
    for station, name in (("source", "source_pieces"), ("target", "decoder_pieces")):
        chips = texts(page.locator(f"#{station}-pieces .chip"))
        assert chips == [f"{piece['text']}{piece['id']}" for piece in sentence[name]]
    page.locator("#target-pieces .chip").nth(6).click()
    step = sentence["steps"][6]
    for station, values in (
        ("logits", [one["logit"] for one in step["top"]]),
        ("softmax", [math.exp(one["log_prob"]) for one in step["top"]]),
    ):
        shown = page.locator(f"#{station} li").evaluate_all(
            "rows => rows.map((row) => Number(row.dataset.value))"
        )
        np.testing.assert_allclose(shown, values, atol=1e-12)
    assert page.locator(".chosen-piece").inner_text() == step["chosen"]["text"]
    readout = page.locator("#source-vectors .readout").inner_text()
    embedding = unpack(sentence["encoder"]["embedding"])[0, 0]
    assert f"{embedding:.4f}".replace("-", "−") in readout


def test_clicking_a_head_changes_the_lines(open_report, report):
    page = open_report(report)
    before = lines(page)
    assert {line[0] for line in before} == set(range(8))
    page.locator(".head[data-head='2']").click()
    assert lines(page, "[data-head='2']") == []
    assert sorted(lines(page)) == sorted(line for line in before if line[0] != 2)
    assert page.locator(".head[data-head='2']").get_attribute("aria-pressed") == "false"
    page.locator(".head[data-head='2']").click()
    assert sorted(lines(page)) == sorted(before)
    page.locator(".head[data-head='5']").dblclick()
    assert {line[0] for line in lines(page)} == {5}
    page.get_by_role("button", name="None", exact=True).click()
    assert lines(page) == []


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_hovering_a_word_highlights_what_it_looks_at(open_report, report, kind):
    page = open_report(report)
    choose(page, "Attention", kind)
    choose(page, "Layer", "layer-1")
    sentence = report["sentences"][0]
    side, name = {
        "encoder": ("encoder", "attention"),
        "decoder": ("decoder", "self_attention"),
        "cross": ("decoder", "cross_attention"),
    }[kind]
    weights = unpack(sentence[side][name])[1]
    keys = sentence["decoder_pieces" if kind == "decoder" else "source_pieces"]
    page.locator(".query .word").nth(9).hover()
    drawn = lines(page)
    assert {line[1] for line in drawn} == {9}
    for head, row, column, weight in drawn:
        assert abs(weight - weights[int(head), int(row), int(column)]) < 1e-6
    expected = {(h, c) for h in range(8) for c in range(len(keys)) if weights[h, 9, c] >= 0.0041}
    assert expected <= {(line[0], line[2]) for line in drawn}
    assert page.locator(".query .word.in-view").count() == 1
    said = texts(page.locator(".head-says"))
    for head, text in enumerate(said):
        best = int(weights[head, 9].argmax())
        assert text.startswith(f"head {head + 1} {keys[best]['text']} "), text
    page.mouse.move(2, 2)
    assert {line[1] for line in lines(page)} != {9}
    page.locator(".key .word").nth(3).hover()
    assert {line[2] for line in lines(page)} == {3}


def test_pieces_joined_into_words_sum_keys_and_average_queries(open_report, report):
    page = open_report(report)
    choose(page, "Layer", "layer-0")
    page.get_by_label("Join pieces into words").check()
    sentence = report["sentences"][0]
    words = [piece["word"] for piece in sentence["source_pieces"]]
    member = np.equal.outer(np.arange(max(words) + 1), words).astype(float)  # [words, pieces]
    joined = texts(page.locator(".query .word .word-text"))
    assert joined == [*sentence["source"].split(" "), "</s>"]
    weights = unpack(sentence["encoder"]["attention"])[0]
    means = member / member.sum(1, keepdims=True)
    expected = np.einsum("wi,nij,vj->nwv", means, weights, member)
    drawn = lines(page)
    assert len(drawn) == int((expected >= 0.02).sum())
    for head, row, column, weight in drawn:
        assert abs(weight - expected[int(head), int(row), int(column)]) < 1e-6


def test_reference_shows_one_hot_and_smoothed_targets(open_report, report):
    page = open_report(report)
    reference = report["sentences"][0]["reference_steps"]
    page.locator("#next-piece .chip").nth(2).click()
    target = reference["pieces"][2]
    values = page.locator(".targets tbody tr").evaluate_all(
        "rows => rows.map((row) => [...row.querySelectorAll('td')].map((c) => +c.dataset.value))"
    )
    top = reference["top"][2]
    others = values[-1]
    np.testing.assert_allclose(
        [row[0] for row in values[:10]], [math.exp(one["log_prob"]) for one in top], atol=1e-12
    )
    np.testing.assert_allclose(np.sum(values, axis=0), 1.0, atol=1e-9)
    on = [row for row in values[:-1] if row[1] == 1.0]
    assert len(on) == 1 and on[0][2] == reference["smoothed"]["on"] and others[1] == 0
    marked = page.locator(".targets tr.chosen th").inner_text()
    assert marked.startswith(target["text"]) and "target" in marked
    shown = page.locator("#next-piece .chip").evaluate_all(
        "chips => chips.map((chip) => Number(chip.dataset.logProb))"
    )
    np.testing.assert_allclose(shown, reference["log_probs"], atol=1e-12)
    page.locator("#next-piece input[value='translation']").check(force=True)
    steps = report["sentences"][0]["steps"]
    assert page.locator("#next-piece .chip").count() == len(steps)
    slider = page.locator("#next-piece input[type=range]")
    slider.focus()
    page.keyboard.press("End")
    assert page.locator("#next-piece .bars li.chosen .name").inner_text() == "</s>"


def test_beam_tree_has_a_leaf_for_each_hypothesis(open_report, report):
    page = open_report(report)
    beam = report["sentences"][0]["beam"]
    nodes = beam["nodes"]
    parents = {node["parent"] for node in nodes}
    leaves = [i for i in range(len(nodes)) if i not in parents]
    assert page.locator(".beam-tree .node").count() == len(nodes)
    assert page.locator(".beam-tree .edge").count() == len(nodes)
    shown = page.locator(".beam-tree [data-leaf=true]").evaluate_all(
        "all => all.map((node) => Number(node.dataset.index))"
    )
    assert sorted(shown) == leaves
    # A hypothesis ends as finished, as dropped, or alive when the search stopped.
    finished = sum(node["state"] == "finished" for node in nodes)
    assert page.locator(".node[data-state=finished][data-leaf=true]").count() == finished >= 4
    assert page.locator(".node[data-returned]").count() == len(beam["returned"]) == 4
    listed = texts(page.locator(".returned .hypothesis"))
    assert listed == [one["text"] for one in beam["returned"]]
    page.locator(".returned button").nth(1).click()
    path, at = [], beam["returned"][1]["node"]
    while at >= 0:
        path.append(at)
        at = nodes[at]["parent"]
    marked = page.locator(".beam-tree .node.on-path").evaluate_all(
        "all => all.map((node) => Number(node.dataset.index))"
    )
    assert sorted(marked) == sorted(path)
    page.get_by_label("Show what was dropped").uncheck()
    visible = page.locator(".beam-tree .node:visible").count()
    assert visible == sum(node["state"] != "dropped" for node in nodes)


def test_layers_say_their_first_choice(open_report, report):
    page = open_report(report)
    steps = report["sentences"][0]["steps"]
    cells = texts(page.locator(".lens tbody td .piece"))
    said = [[step["layers"][layer][0]["text"] for step in steps] for layer in range(3)]
    assert cells == [text for row in said for text in row]
    agreeing = sum(
        step["layers"][layer][0]["id"] == step["chosen"]["id"]
        for layer in range(3)
        for step in steps
    )
    assert page.locator(".lens td.agrees").count() == agreeing > 0
    page.locator(".lens tbody tr").nth(1).locator("button").nth(4).click()
    detail = texts(page.locator(".lens-layers .piece"))
    assert detail == [one["text"] for layer in steps[4]["layers"] for one in layer]


def test_switching_the_sentence_switches_everything(open_report, report):
    page = open_report(report)
    page.locator("#next").click()
    second = report["sentences"][1]
    page.locator("dd.translation", has_text=second["translation"]).wait_for()
    page.locator(f"#lens thead th >> nth={len(second['steps'])}").wait_for()
    assert texts(page.locator(".query .word")) == [p["text"] for p in second["source_pieces"]]
    assert page.locator(".beam-tree .node").count() == len(second["beam"]["nodes"])
    assert page.locator("#lens thead th").count() == len(second["steps"]) + 1
    assert page.locator(".targets").count() == 0  # it has no reference
    assert page.title().startswith(second["source"])
    page.locator("#sentence-choice").select_option("2")
    page.locator("dd.source", has_text="thanks").wait_for()
    assert page.locator("#next").is_disabled()
    page.get_by_text("One hypothesis: at each step").wait_for()


def test_keyboard_reaches_words_matrix_steps_and_tree(open_report, report):
    page = open_report(report)
    page.locator(".query .word").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert {line[1] for line in lines(page)} == {2}
    page.keyboard.press("Enter")
    assert page.locator(".query .word").nth(2).get_attribute("aria-pressed") == "true"
    page.locator(".matrix canvas").focus()
    page.keyboard.press("ArrowDown")
    assert {line[1] for line in lines(page)} == {3}
    page.keyboard.press("Tab")  # leaves the matrix
    page.locator(".query .word").nth(2).focus()
    page.keyboard.press("Escape")
    assert page.locator(".word[aria-pressed=true]").count() == 0
    page.locator("#source-vectors canvas").first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert "dimension 3:" in page.locator("#source-vectors .readout").inner_text()
    page.locator(".node").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".node:focus").get_attribute("aria-label").startswith("step 2, ")
    page.keyboard.press("ArrowLeft")
    assert page.locator(".node:focus").get_attribute("data-index") == "0"
