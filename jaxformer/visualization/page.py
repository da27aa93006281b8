"""A self-contained HTML page that shows a translation from the inside: no network, no server.

The page's parts are in `assets/`; its numbers come from `page_data`, whose `SCHEMA` lists the
fields. All text enters the document through `textContent`, and the content security policy allows
only the style and the script of this package.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from importlib.resources import files

from jaxformer.errors import InputError

SCHEMA_VERSION = 2
# Joined in this order into one function body: each file uses names of the files before it.
SCRIPTS = (
    "numbers.js",
    "elements.js",
    "theme.js",
    "shared.js",
    "heat_map.js",
    "vectors.js",
    "figure.js",
    "stations.js",
    "attention_weights.js",
    "attention_lines.js",
    "attention_heads.js",
    "attention.js",
    "next_piece.js",
    "beam_layout.js",
    "beam.js",
    "layers_say.js",
    "main.js",
)
# What could end the data's <script> element, start a comment in it, or end a line in JavaScript.
ESCAPES = {ord(mark): f"\\u{ord(mark):04x}" for mark in "<>&\u2028\u2029"}


def render_page(data: dict) -> str:
    """The page of a report: a complete HTML document that opens from disk.

    Args:
      data: the report, of this schema version, with at least one sentence.

    Returns:
      UTF-8 text; lone surrogates and HTML's special characters are escaped in the data.

    Raises:
      InputError: another schema version, no sentence, or a number that JSON cannot hold.
    """
    if data.get("version") != SCHEMA_VERSION:
        raise InputError(
            f"the report has schema version {data.get('version')}; this page reads "
            f"{SCHEMA_VERSION}; make the report again with this version of jaxformer"
        )
    if not data.get("sentences"):
        raise InputError("sentences=[]: a report needs at least one sentence; give --text")
    parts = {
        "policy": content_security_policy(_style(), _script()),
        "style": _style(),
        "script": _script(),
        "data": embedded_json(data),
    }
    # One pass over the template, so that placeholders inside sentences are not replaced.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))


def content_security_policy(style: str, script: str) -> str:
    """The policy that allows exactly this inline style and script, and no requests."""
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src '{_sha256(style)}'",
            f"script-src '{_sha256(script)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",  # no string becomes markup or code
        )
    )


def embedded_json(data: dict) -> str:
    """JSON that is safe inside a <script> element.

    Raises:
      InputError: NaN or an infinity, which JSON cannot hold.
    """
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise InputError(
            f"the report holds a number that is not finite ({error}); the parameters of the "
            "checkpoint are damaged or the training diverged"
        ) from error
    text = text.translate(ESCAPES)
    # A lone surrogate has no UTF-8 encoding, so it is escaped.
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def _sha256(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


@cache
def _asset(name: str) -> str:
    return (files("jaxformer.visualization") / "assets" / name).read_bytes().decode("utf-8")


@cache
def _style() -> str:
    """The style sheet, whose dark colours also apply where the system asks for them."""
    style = _asset("page.css")
    dark = re.search(r':root\[data-theme="dark"\] (\{.*?\n\})\n', style, re.DOTALL)
    by_system = f':root:not([data-theme="light"]) {dark[1]}'
    media = f"@media (prefers-color-scheme: dark) {{\n{by_system}\n}}\n"
    return style[: dark.end()] + media + style[dark.end() :]


@cache
def _script() -> str:
    """All scripts as one strict function, so that nothing in them is global."""
    body = "\n".join(_asset(name) for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{body}}})();\n'
