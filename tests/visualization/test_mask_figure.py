"""Masks in the picture are those of the model, with the right reason for each hidden key."""

import numpy as np
import pytest

from jaxformer.errors import InputError
from jaxformer.ops.attention_mask import AttentionMask
from jaxformer.visualization.mask_figure import attention_kinds, batch_rows, masks_figure

PAIRS = [(["why"], ["pourquoi", "?"]), (["the", "cat"], ["le"])]
NAMES = ".>#x"  # may attend, later token, padding, another sentence


def drawing(kinds):
    return ["".join(NAMES[kind] for kind in row) for row in kinds]


def test_rows_are_padded_to_the_longest_and_the_last_is_packed():
    first, second, packed = batch_rows(PAIRS)
    assert first.inputs == ["why", "</s>", "<pad>"]
    assert first.decoder_inputs == ["<s>", "pourquoi", "?"]
    assert second.inputs == ["the", "cat", "</s>"]
    assert second.decoder_inputs == ["<s>", "le", "<pad>"]
    assert packed.inputs == ["why", "</s>", "the", "cat", "</s>"]
    assert packed.decoder_inputs == ["<s>", "pourquoi", "?", "<s>", "le"]


def test_padded_rows_hide_padding_keys_and_later_tokens():
    first, second, _ = (attention_kinds(row) for row in batch_rows(PAIRS))
    assert drawing(first["encoder"]) == ["..#", "..#", "..#"]
    assert drawing(first["decoder"]) == [".>>", "..>", "..."]
    assert drawing(first["cross"]) == ["..#", "..#", "..#"]
    assert drawing(second["encoder"]) == ["...", "...", "..."]


def test_packed_rows_hide_the_other_sentence():
    packed = attention_kinds(batch_rows(PAIRS)[2])
    assert drawing(packed["encoder"]) == ["..xxx", "..xxx", "xx...", "xx...", "xx..."]
    assert drawing(packed["decoder"]) == [".>>>>", "..>>>", "...>>", "xxx.>", "xxx.."]
    assert drawing(packed["cross"]) == ["..xxx", "..xxx", "..xxx", "xx...", "xx..."]


def test_a_mask_without_a_known_reason_is_not_drawn_as_allowed():
    row = batch_rows(PAIRS)[0]
    secret = AttentionMask(mask=np.zeros((1, 1, 3, 3), bool))
    row = row._replace(masks=row.masks._replace(encoder=secret))
    with pytest.raises(InputError, match="encoder: .*mask"):
        attention_kinds(row)


def test_the_picture_has_a_panel_for_each_row_and_attention():
    figure = masks_figure(PAIRS)
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    names = ("encoder", "decoder", "decoder to encoder")
    assert titles == [f"{row}, {name}" for row in ("row 0", "row 1", "packed") for name in names]
    last = figure.axes[-1]
    assert [label.get_text() for label in last.get_yticklabels()] == [
        "<s>", "pourquoi", "?", "<s>", "le",
    ]  # fmt: skip
    drawn = {
        collection.get_hatch(): int((~np.ma.getmaskarray(collection.get_array())).sum())
        for collection in figure.axes[7].collections
    }
    # Of the packed decoder: 9 cells to look at, 10 later, 6 of the other sentence.
    assert drawn == {"": 9, "////": 10, "xxxx": 6} or drawn == {None: 9, "////": 10, "xxxx": 6}
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["may attend", "later token", "padding", "another sentence"]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (PAIRS[:1], "1 sentence pairs.*two or more"),
        ([*PAIRS, ([], ["le"])], "3 sentence pairs.*empty"),
        ([(["a"] * 40, ["b"]), (["a"] * 10, ["b"])], "52 tokens.*48"),
    ],
)
def test_batches_that_cannot_be_drawn_are_refused(pairs, message):
    with pytest.raises(InputError, match=message):
        masks_figure(pairs)
