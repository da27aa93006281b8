// Elements: how this page makes its document. Text only ever enters as text nodes.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else if (name === "style") setStyle(node, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** The policy forbids style attributes, so styles are set property by property. */
function setStyle(node, properties) {
  for (const [name, value] of Object.entries(properties)) node.style.setProperty(name, value);
}

/** element("p", {class: "note", click: listener}, "text", child) */
function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG_NAMESPACE, name), attributes, children);
}

function find(selector) {
  return document.querySelector(selector);
}

/** The marks of spaces that a piece begins with, and what follows them. */
function splitMarks(text) {
  const marks = /^▁*/u.exec(text)[0];
  return [marks, text.slice(marks.length)];
}

/** A piece as it is, in its own writing direction; the mark of a space is dimmed. */
function pieceNode(text) {
  const [marks, rest] = splitMarks(text);
  return element(
    "bdi",
    { class: "piece" },
    marks && element("span", { class: "space-mark" }, marks),
    rest,
  );
}

/** The same inside an SVG text. */
function pieceSpans(text) {
  const [marks, rest] = splitMarks(text);
  return [marks && svg("tspan", { class: "space-mark" }, marks), rest];
}

/** The first `most` characters as people count them, and a sign where there were more. */
function shortened(text, most) {
  const characters = [...new Intl.Segmenter().segment(text)].map((part) => part.segment);
  return characters.length <= most ? text : `${characters.slice(0, most - 1).join("")}…`;
}

/** One stop of the Tab key for many items; arrows move inside. `next(index, key)` may say where. */
function roving(container, items, next) {
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  items.forEach((item, i) => item.setAttribute("tabindex", i === 0 ? "0" : "-1"));
  const stop = (target) => {
    for (const item of items) item.setAttribute("tabindex", item === target ? "0" : "-1");
  };
  container.addEventListener("focusin", (event) => {
    const item = items.find((candidate) => candidate.contains(event.target));
    if (item) stop(item);
  });
  container.addEventListener("keydown", (event) => {
    const index = items.findIndex((item) => item.contains(document.activeElement));
    if (index < 0) return;
    let target = next?.(index, event.key);
    if (target === undefined && event.key in steps && !next) target = index + steps[event.key];
    if (event.key === "Home") target = 0;
    if (event.key === "End") target = items.length - 1;
    if (target === undefined || !items[target]) return;
    event.preventDefault();
    items[target].focus();
  });
}

let radioGroups = 0;

/** A row of choices, exactly one of them taken. options: [[value, label], ...] */
function choice(legend, options, value, changed) {
  radioGroups += 1;
  const group = `choice-${radioGroups}`;
  return element(
    "fieldset",
    { class: "choice" },
    element("legend", {}, legend),
    element(
      "div",
      { class: "segments" },
      options.map(([option, label]) => element(
        "label",
        {},
        element("input", {
          type: "radio",
          name: group,
          value: option,
          checked: option === value,
          change: () => changed(option),
        }),
        element("span", {}, String(label)),
      )),
    ),
  );
}

function checkbox(label, checked, changed) {
  return element(
    "label",
    { class: "checkbox" },
    element("input", { type: "checkbox", checked, change: (event) => changed(event.target.checked) }),
    element("span", {}, label),
  );
}

/** A slider with buttons for one step back and forth; returns the element and `show(value)`. */
function stepper(label, count, changed) {
  const slider = element("input", {
    type: "range", min: 0, max: count - 1, step: 1, value: 0, "aria-label": label,
    input: (event) => changed(Number(event.target.value)),
  });
  const move = (by) => changed(Math.min(count - 1, Math.max(0, Number(slider.value) + by)));
  const back = element("button", { type: "button", "aria-label": "Previous step", click: () => move(-1) }, "‹");
  const forth = element("button", { type: "button", "aria-label": "Next step", click: () => move(1) }, "›");
  const text = element("output", {});
  const show = (value) => {
    slider.value = value;
    slider.setAttribute("aria-valuetext", `step ${value + 1} of ${count}`);
    text.textContent = `${value + 1} of ${count}`;
    back.disabled = value === 0;
    forth.disabled = value === count - 1;
  };
  show(0);
  return { node: element("div", { class: "stepper" }, element("span", {}, label), back, slider, forth, text), show };
}
