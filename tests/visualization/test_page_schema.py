"""The data of a page from both sides: Python writes, and JavaScript reads, what `SCHEMA` lists.

JavaScript is not run here. Its sources are searched for chains such as
`sentence.beam.returned[0].node`, whose first name has a kind: by `NAMES`, or because it was made
from another chain. The tests in Chromium record what is read there.
"""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from random_translator import TEXT, make_translator, small_model
from report_example import example_report

from jaxformer.config import Config
from jaxformer.visualization import page_data as module
from jaxformer.visualization.page import SCRIPTS, render_page
from jaxformer.visualization.page_data import SCHEMA, page_data
from jaxformer.visualization.trace import trace_sentence

ASSETS = Path(module.__file__).parent / "assets"
SIMPLE = {"int": int, "float": (int, float), "str": str, "bool": bool, "null": type(None)}
# Fields that no script reads, and why they are written.
NOT_READ = {("Report", "version"): "render_page refuses another version"}
# Objects that the page makes and that lead to those of the report.
PAGE_KINDS = {
    "Arrays": {"encoder": "Encoder", "decoder": "Decoder"},  # unpacked
    "Side": {"arrays": "Encoder|Decoder", "pieces": "[Piece]"},
    "Strips": {"side": "Side"},
    "Section": {"sentence": "Sentence", "layout": "Layout"},
    "Layout": {"nodes": "[Drawn]"},
    "Drawn": SCHEMA["Node"],  # a copy of a node, with its place
    "Track": {
        "pieces": "[Piece]", "top": "[[Choice|Candidate]]", "chosen": "[Choice|Candidate]",
        "entropy": "[float]", "losses": "[float]", "smoothed": "Smoothed",
    },
}  # fmt: skip
KINDS = SCHEMA | PAGE_KINDS
FIELDS = {field for fields in SCHEMA.values() for field in fields}
# What a name stands for where nothing before it says so: parameters, and members of new lists.
NAMES = {
    "report": "Report", "sentence": "Sentence", "beam": "Beam", "step": "Step", "piece": "Piece",
    "candidate": "Choice|Candidate", "packed": "Array", "arrays": "Arrays", "side": "Side",
    "strips": "Strips", "section": "Section", "track": "Track", "layout": "Layout", "node": "Drawn",
    "a": "Drawn", "b": "Drawn",
}  # fmt: skip
# Names of the page's own objects that have a member called like a field of the report.
OWN = set(
    "BOX all array box canvas cell chosen decoder encoder found group head image last left map "
    "place right size slider station".split()
)
NAME = r"[A-Za-z_$][\w$]*"
PATTERN = rf"{NAME}|\{{[^{{}}]*\}}|\[[^\[\]]*\]"


def conforms(value, kind, path="report"):
    """Paths of what is not of `kind`, a type as `SCHEMA` writes it."""
    if " | " in kind:
        return min((conforms(value, one, path) for one in kind.split(" | ")), key=len)
    if kind.startswith("["):
        if not isinstance(value, list):
            return [path]
        return sorted({bad for one in value for bad in conforms(one, kind[1:-1], f"{path}[]")})
    if kind.startswith("A["):
        axes = kind.count(",") + 1
        return conforms(value, "Array", path) or [path] * (len(value["shape"]) != axes)
    if kind in SIMPLE:
        fits = isinstance(value, SIMPLE[kind]) and isinstance(value, bool) == (kind == "bool")
        return [] if fits else [path]
    if not isinstance(value, dict):
        return [path]
    fields = SCHEMA[kind]
    bad = [f"{path}.{name}" for name in fields.keys() ^ value.keys()]
    for name in fields.keys() & value.keys():
        bad += conforms(value[name], fields[name], f"{path}.{name}")
    return sorted(bad)


class Reads:
    """What a function of the page reads: `found` (kind, field), and what nobody writes or knows."""

    def __init__(self, source):
        self.source, self.names = source, dict(NAMES)
        self.found, self.wrong = set(), []
        for _ in range(2):  # a name may come from one that is made later in the text
            self.found, self.wrong = set(), []
            for root in re.finditer(rf"(?:(?<![\w$.])|(?<=\.\.\.)){NAME}", source):
                self.follow(root)

    def follow(self, root):
        """Walk along the chain that begins with a name, and name what is made of it."""
        kind, at, first = self.names.get(root[0]), root.end(), True
        while True:
            member = re.compile(rf"\s*\??\.({NAME})").match(self.source, at)
            index = re.compile(r"(?:\?\.)?\[").match(self.source, at)
            if member and self.source.startswith("(", member.end()):
                return self.name_parameter(kind, member)
            if member:
                kind, at = self.field(kind, member[1], root[0] if first else ""), member.end()
            elif index:
                kind, at = element(kind), closing(self.source, index.end() - 1)
            else:
                return self.name_result(kind, root.start(), at)
            first = False

    def field(self, kind, name, root=""):
        """The type of a field; None where it leads out of the report."""
        if kind is None or kind.startswith(("[", "A[")) or kind in SIMPLE:
            if kind is None and name in FIELDS and root and root not in OWN:
                self.wrong.append(f"{root}.{name}: of which kind is {root}?")
            return None
        types = []
        for one in kind.split("|"):
            self.found.add((one, name))
            if name not in KINDS[one] and one in SCHEMA:
                self.wrong.append(f"{one} has no {name}")
            types.append(KINDS[one].get(name))
        return types[0] and types[0].removesuffix(" | null")

    def name_result(self, kind, start, end):
        """`const PATTERN = chain;` and `for (const PATTERN of chain)`."""
        before = re.search(rf"(?:const|let) ({PATTERN}) (=|of) $", self.source[:start])
        if before and self.source[end : end + 1] == {"=": ";", "of": ")"}[before[2]]:
            self.name(before[1], kind if before[2] == "=" else element(kind))

    def name_parameter(self, kind, method):
        """`chain.map((PATTERN, ...) => ...)`."""
        parameter = re.compile(rf"\(\(({PATTERN})").match(self.source, method.end())
        if parameter and kind and kind.startswith("["):
            self.name(parameter[1], element(kind))

    def name(self, pattern, kind):
        if pattern[0] == "{":
            for item in filter(None, map(str.strip, pattern[1:-1].split(","))):
                field, _, alias = item.partition(": ")
                self.name(alias or field, self.field(kind, field, kind and ""))
        elif pattern[0] == "[":
            for item in filter(None, map(str.strip, pattern[1:-1].split(","))):
                self.name(item, element(kind))
        elif kind:
            self.names[pattern] = kind


def element(kind):
    return kind[1:-1] if kind and kind.startswith("[") else None


def closing(text, at):
    """Behind the bracket that closes the one at `at`."""
    depth = 0
    for end in range(at, len(text)):
        depth += {"[": 1, "]": -1}.get(text[end], 0)
        if depth == 0:
            return end + 1
    raise ValueError(f"no ] closes {text[at : at + 40]!r}")


def functions(name):
    """The top-level functions and constants of a script, without comments and strings."""
    text = (ASSETS / name).read_text("utf-8")
    text = re.sub(r"/\*.*?\*/|(?<!:)//[^\n]*", "", text, flags=re.S)
    text = re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', text)
    return re.split(r"^(?=(?:async )?function |const |let )", text, flags=re.M)


def all_reads():
    reads = [Reads(function) for name in SCRIPTS for function in functions(name)]
    return set().union(*(one.found for one in reads)), [text for one in reads for text in one.wrong]


def test_every_field_that_the_scripts_read_is_written():
    found, wrong = all_reads()
    assert wrong == [] and len(found) > 60


def test_every_field_that_is_written_is_read_by_the_scripts():
    found, _ = all_reads()
    written = {(kind, field) for kind, fields in SCHEMA.items() for field in fields}
    assert written - found == NOT_READ.keys()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("...sentence.beam.returned[rows[0].i]?.node)", {"Sentence.beam", "Beam.returned",
                                                         "Hypothesis.node"}),
        ("const { top, chosen: one } = sentence.steps[at];\none.logit + top[0].id",
         {"Sentence.steps", "Step.top", "Step.chosen", "Choice.logit", "Choice.id"}),
        ("const [best] = step.layers[layer];\nbest.prob", {"Step.layers", "Guess.prob"}),
        ("sentence.steps\n.map((step) => step.top.some(({ id }, i) => id === i))",
         {"Sentence.steps", "Step.top", "Choice.id"}),
        ("for (const one of sentence.beam.nodes) go(one.state)",
         {"Sentence.beam", "Beam.nodes", "Node.state"}),
    ],
)  # fmt: skip
def test_reads_are_found(source, found):
    reads = Reads(source)
    assert {f"{kind}.{field}" for kind, field in reads.found} == found and reads.wrong == []


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("sentence.cut ? 1 : 0", "Sentence has no cut"),
        ("const { top, choice } = sentence.steps[0];", "Step has no choice"),
        ("sentence.beam.returned.map((one) => one.rank)", "Hypothesis has no rank"),
        ("list.map((one) => one.log_prob)", "one.log_prob: of which kind is one?"),
    ],
)
def test_a_field_that_nobody_writes_is_found(source, wrong):
    assert Reads(source).wrong == [wrong]


def page_of(translator, traces):
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    return page_data(traces, Config(model=translator.model.config), tokenizers, "best")


@pytest.mark.parametrize(
    ("changes", "decoding"),
    [
        ({}, {"length_penalty": "power"}),
        ({"norm": "pre", "positions": "rotary"}, {"beam_size": 1}),
    ],
    ids=["beam search", "greedy"],
)
def test_a_page_holds_exactly_the_fields_of_the_schema(parameters_of, changes, decoding):
    translator = make_translator(parameters_of, small_model(**changes), **decoding)
    traces = [trace_sentence(translator, TEXT, "le chat"), trace_sentence(translator, TEXT)]
    page = page_of(translator, traces)
    assert conforms(json.loads(json.dumps(page)), "Report") == []


def test_a_translation_that_the_length_limit_cut_is_said_to_be(parameters_of):
    limits = {"max_length_factor": 0.0, "max_length_extra": 3}
    translator = make_translator(parameters_of, **limits)
    cut = trace_sentence(translator, TEXT)
    assert cut.hypotheses[0].truncated and len(cut.target_ids) == 3
    best, *others = cut.hypotheses
    whole = replace(cut, hypotheses=(replace(best, truncated=False), *others))
    for trace, truncated in ((cut, True), (whole, False)):
        page = page_of(translator, [trace])
        (sentence,) = page["sentences"]
        assert sentence["truncated"] is sentence["beam"]["returned"][0]["truncated"] is truncated
        rendered = render_page(page)
        # Hidden in the document until the script finds a sentence to be truncated.
        notice = re.search(r'<p id="cut"[^>]* hidden>(.*?)</p>', rendered)[1]
        assert "length limit" in notice and "--max_length" in notice
        assert 'find("#cut").hidden = !sentence.truncated;' in rendered


def test_the_invented_report_holds_exactly_the_fields_of_the_schema():
    assert conforms(example_report(), "Report") == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda s: s.pop("truncated"), "report.sentences[].truncated"),
        (lambda s: s.update(truncated=0), "report.sentences[].truncated"),
        (lambda s: s["beam"]["nodes"][0].update(id=3), "report.sentences[].beam.nodes[].id"),
        (lambda s: s["steps"][1].update(layers=[]) or s["steps"][0].pop("top"),
         "report.sentences[].steps[].top"),
        (lambda s: s["encoder"]["sum"].update(shape=[1]), "report.sentences[].encoder.sum"),
    ],
)  # fmt: skip
def test_what_is_not_of_the_schema_is_found(change, path):
    report = example_report()
    change(report["sentences"][0])
    assert conforms(report, "Report") == [path]
