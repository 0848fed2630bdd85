// The page that `cudnnpy tune --html` writes: tables that are sorted and filtered, and a plot for each problem.
//
// The first part computes and touches no document, so that it is tested without a browser; the second part draws.
"use strict";

// Texts of numbers

function millisecondsText(value) {
  if (value === null) return "";
  return value >= 1000 ? value.toFixed(0) : value.toPrecision(4);
}

function ratioText(value) {
  return value === null ? "" : value.toFixed(value < 10 ? 3 : 1);
}

function bytesText(size) {
  if (size === null) return "";
  const units = ["bytes", "KiB", "MiB", "GiB"];
  let value = size;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit ? Number(value.toPrecision(4)) : size} ${units[unit]}`;
}

function percentText(value) {
  return value === null ? "" : `${(100 * value).toFixed(1)} %`;
}

function timeText(value) {
  return value === null ? "planned" : millisecondsText(value);
}

function countText(value) {
  return value === null ? "" : String(value);
}

// Tables. A column has the key of a row's value, a title, `text` for values that are numbers, what the filter reads, and
// `meaning` for the legend.

const PROBLEM_COLUMNS = [
  { key: "text", title: "Problem", searched: true },
  { key: "gpu", title: "GPU", searched: true },
  { key: "choice", title: "Choice", searched: true },
  { key: "milliseconds", title: "Time (ms)", text: timeText, meaning: "the time of the choice on the GPU; planned: chosen without measuring" },
  {
    key: "over_heuristics",
    title: "Over heuristics",
    text: ratioText,
    meaning: "the time of the choice over the time of the heuristics' first choice; below 1 is faster",
  },
  {
    key: "over_guess",
    title: "Over first guess",
    text: ratioText,
    meaning: "the time of the choice over the time of the choice of prefer=\"fastest\", which measures nothing",
  },
  { key: "workspace", title: "Workspace", text: bytesText },
  {
    key: "spread",
    title: "Spread",
    text: percentText,
    meaning: "(longest - shortest) / median of the times of the choice",
  },
  {
    key: "error",
    title: "Error",
    text: ratioText,
    meaning: "the largest error of the result against float64, in units of the tolerance; above 1 is wrong",
  },
  { key: "measured", title: "Measured", text: countText, meaning: "the number of candidates that were measured" },
];

const CANDIDATE_COLUMNS = [
  { key: "name", title: "Candidate", searched: true },
  { key: "source", title: "Source", searched: true },
  { key: "milliseconds", title: "Time (ms)", text: millisecondsText },
  { key: "workspace", title: "Workspace", text: bytesText },
  { key: "notes", title: "Notes", searched: true },
  { key: "roles", title: "Role", searched: true },
  { key: "refused", title: "Left out because", searched: true },
];

const collator = new Intl.Collator("en", { numeric: true });

function isMissing(value) {
  return value === null || value === undefined || value === "";
}

/** The rows by the values of a key. Rows without a value are last in both directions, and equal rows keep their order. */
function sorted(rows, key, descending) {
  const sign = descending ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [one[key], other[key]];
    if (isMissing(a) || isMissing(b)) return Number(isMissing(a)) - Number(isMissing(b));
    return sign * (typeof a === "number" ? a - b : collator.compare(a, b));
  });
}

/** The rows that have every word of a text in one of the columns that are searched; a word after "-" must be in none. */
function filtered(rows, text, columns) {
  const words = text.toLowerCase().split(/\s+/).filter((word) => word && word !== "-");
  const keys = columns.filter((column) => column.searched).map((column) => column.key);
  return rows.filter((row) => {
    const content = keys.map((key) => String(row[key] ?? "")).join("\n").toLowerCase();
    return words.every((word) => (word.startsWith("-") ? !content.includes(word.slice(1)) : content.includes(word)));
  });
}

/** The columns without those in which all rows have the same value, if they are of `optional`. */
function shownColumns(columns, rows, optional) {
  return columns.filter(
    (column) => !optional.includes(column.key) || new Set(rows.map((row) => row[column.key] ?? null)).size > 1,
  );
}

/** The columns in which some row has a value, and the time, which says "planned" where there is none. */
function filledColumns(columns, rows) {
  return columns.filter(
    (column) => column.text === timeText || !rows.length || rows.some((row) => !isMissing(row[column.key])),
  );
}

// Plots

// The numbers that the ticks of an axis may have, in ascending order: a function of all integers.

const sizeRungs = (power) => 2 ** power;

/** Round numbers, the closer to each other the narrower the range of the values is. */
function timeRungs(values) {
  const positive = values.filter((value) => value > 0);
  const range = positive.length ? Math.max(...positive) / Math.min(...positive) : 1;
  let mantissas = [1, 2, 5];
  if (range < 4) mantissas = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8];
  if (range < 1.5) mantissas = Array.from({ length: 180 }, (_, number) => (20 + number) / 20);
  const count = mantissas.length;
  return (step) => Number((mantissas[((step % count) + count) % count] * 10 ** Math.floor(step / count)).toPrecision(3));
}

/**
 * The places of values on a logarithmic axis from 0 to `length`, and its ticks; values of 0 have a place of their own.
 * `rungs` gives the numbers that ticks may have, which ascend.
 */
function logarithmicAxis(values, length, rungs) {
  const positive = values.filter((value) => value > 0);
  const hasZero = positive.length < values.length;
  const [least, most] = positive.length ? [Math.min(...positive), Math.max(...positive)] : [1, 1];
  let low = 0;
  while (rungs(low) > least) low -= 1;
  while (rungs(low + 1) <= least) low += 1;
  let high = low + 1;
  while (rungs(high) < most) high += 1;
  const step = Math.ceil((high - low) / 8);
  high = low + step * Math.ceil((high - low) / step); // so that the last tick is at the end
  const start = hasZero ? 0.12 * length : 0;
  const scale = (length - start) / Math.log(rungs(high) / rungs(low));
  const at = (value) => (value > 0 ? start + Math.log(value / rungs(low)) * scale : 0);
  const ticks = hasZero ? [0] : [];
  for (let rung = low; rung <= high; rung += step) ticks.push(rungs(rung));
  return { at, ticks };
}

/** The candidates that were measured, in the order of their times: what a plot shows. */
function dotsOf(problem) {
  return sorted(
    problem.candidates.filter((candidate) => candidate.milliseconds !== null),
    "milliseconds",
    false,
  );
}

function kindOf(candidate) {
  if (candidate.refused) return "wrong";
  return ["heuristics", "engines", "knobs", "legacy"].includes(candidate.source) ? candidate.source : "ranking";
}

function describe(candidate) {
  const parts = [
    candidate.roles && `${candidate.roles}:`,
    candidate.name,
    `${millisecondsText(candidate.milliseconds)} ms,`,
    `workspace ${bytesText(candidate.workspace ?? 0)},`,
    `from ${candidate.source}`,
    candidate.refused && `(${candidate.refused})`,
  ];
  return parts.filter(Boolean).join(" ");
}

// The document

function start(document) {
  const data = JSON.parse(document.getElementById("data").textContent);
  const main = document.getElementById("main");
  const columns = filledColumns(shownColumns(PROBLEM_COLUMNS, data.problems, ["gpu"]), data.problems);

  function element(name, attributes, ...children) {
    const made = document.createElement(name);
    return filled(made, attributes, children);
  }

  function drawn(name, attributes, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    return filled(made, attributes, children);
  }

  function filled(made, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  /** A table with a filter above it. `firstCell` makes the content of a row's first cell. */
  function makeTable(rows, columns, noun, caption, firstCell) {
    const state = { key: null, descending: false, text: "" };
    const body = element("tbody", {});
    const count = element("p", { class: "count", role: "status" });
    const search = element("input", { type: "search", autocomplete: "off", spellcheck: "false" });
    const headings = columns.map((column) => {
      const button = element("button", { type: "button" }, column.title);
      const heading = element("th", { scope: "col", "aria-sort": "none", class: column.text ? "number" : "" }, button);
      button.addEventListener("click", () => {
        state.descending = state.key === column.key && !state.descending;
        state.key = column.key;
        for (const other of headings) other.setAttribute("aria-sort", "none");
        heading.setAttribute("aria-sort", state.descending ? "descending" : "ascending");
        update();
      });
      return heading;
    });
    const made = new Map(); // the rows of the document, made once: what was opened in them stays open

    function line(row) {
      if (!made.has(row)) {
        const cells = columns.map((column, number) => {
          const text = column.text ? column.text(row[column.key] ?? null) : String(row[column.key] ?? "");
          if (number === 0) return element("th", { scope: "row" }, firstCell ? firstCell(row, columns.length) : text);
          return element("td", { class: column.text ? "number" : "", "data-title": column.title }, text);
        });
        made.set(row, element("tr", { class: row.roles ? "chosen" : "" }, ...cells));
      }
      return made.get(row);
    }

    function update() {
      const shown = filtered(rows, state.text, columns);
      const lines = state.key === null ? shown : sorted(shown, state.key, state.descending);
      body.replaceChildren(...lines.flatMap((row) => [line(row), line(row).detail].filter(Boolean)));
      count.textContent = `${shown.length} of ${rows.length} ${noun}`;
    }

    search.addEventListener("input", () => {
      state.text = search.value;
      update();
    });
    update();
    const table = element("table", {}, element("caption", {}, caption));
    table.append(element("thead", {}, element("tr", {}, ...headings)), body);
    const scroll = element("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" }, table);
    const label = element("label", {}, `Filter ${noun}`, search);
    return element("div", {}, element("div", { class: "controls" }, label, count), scroll);
  }

  /** The button that opens a problem's detail in a row below its own. */
  function opener(problem, width) {
    const button = element("button", { type: "button", class: "opener", "aria-expanded": "false" }, problem.text);
    button.addEventListener("click", () => {
      const row = button.closest("tr");
      if (row.detail) row.detail.remove();
      row.detail = row.detail ? null : element("tr", { class: "detail" }, element("td", { colspan: width }));
      if (row.detail) {
        row.detail.firstChild.append(element("div", { class: "sheet" }, ...detail(problem)));
        row.after(row.detail);
      }
      button.setAttribute("aria-expanded", String(Boolean(row.detail)));
    });
    return button;
  }

  function detail(problem) {
    const facts = element("dl", {});
    for (const [name, value] of problem.facts) facts.append(element("dt", {}, name), element("dd", {}, value));
    const columns = filledColumns(CANDIDATE_COLUMNS, problem.candidates);
    const candidates = makeTable(problem.candidates, columns, "candidates", "The candidates that were considered");
    return [facts, plot(problem), candidates];
  }

  function plot(problem) {
    const dots = dotsOf(problem);
    if (!dots.length) return element("p", {}, "No candidate was measured.");
    const [width, height, left, top, right, bottom] = [860, 380, 70, 16, 24, 44];
    const x = logarithmicAxis(dots.map((dot) => dot.workspace ?? 0), width - left - right, sizeRungs);
    const times = dots.map((dot) => dot.milliseconds);
    const y = logarithmicAxis(times, height - top - bottom, timeRungs(times));
    const [across, up] = [(value) => left + x.at(value), (value) => height - bottom - y.at(value)];
    const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Time against workspace" });
    for (const tick of x.ticks) {
      svg.append(drawn("line", { class: "grid", x1: across(tick), x2: across(tick), y1: top, y2: height - bottom }));
      svg.append(drawn("text", { x: across(tick), y: height - bottom + 16, "text-anchor": "middle" }, bytesText(tick)));
    }
    for (const tick of y.ticks) {
      svg.append(drawn("line", { class: "grid", x1: left, x2: width - right, y1: up(tick), y2: up(tick) }));
      svg.append(drawn("text", { x: left - 8, y: up(tick) + 4, "text-anchor": "end" }, `${tick} ms`));
    }
    svg.append(drawn("rect", { class: "frame", x: left, y: top, width: width - left - right, height: height - top - bottom }));
    svg.append(drawn("text", { x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" }, "workspace"));
    const caption = element("figcaption", { "aria-live": "polite" }, "Point at a dot, or use Tab and the arrow keys.");
    addDots(svg, dots, across, up, caption, width);
    return element("figure", {}, svg, legend(dots), caption);
  }

  function addDots(svg, dots, across, up, caption, width) {
    const marks = dots.map((candidate, number) => {
      const [x, y] = [across(candidate.workspace ?? 0), up(candidate.milliseconds)];
      const name = { tabindex: number ? "-1" : "0", role: "img", "aria-label": describe(candidate) };
      const mark = drawn("path", { ...name, class: `dot ${kindOf(candidate)}`, d: shape(candidate, x, y) });
      mark.append(drawn("title", {}, describe(candidate)));
      for (const event of ["focus", "pointerenter"]) {
        mark.addEventListener(event, () => (caption.textContent = describe(candidate)));
      }
      mark.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        const next = marks[number + (step ?? 0)];
        if (!step || !next) return;
        event.preventDefault();
        mark.setAttribute("tabindex", "-1");
        next.setAttribute("tabindex", "0");
        next.focus();
      });
      return mark;
    });
    svg.append(...marks);
    const labels = [];
    for (const candidate of dots.filter((dot) => dot.roles)) {
      const [x, y] = [across(candidate.workspace ?? 0), up(candidate.milliseconds)];
      const isLeft = x > width / 2;
      svg.append(drawn("circle", { class: "ring", cx: x, cy: y, r: 10 }));
      const label = { x: x + (isLeft ? -15 : 15), y: y + 4, "text-anchor": isLeft ? "end" : "start" };
      while (labels.some((other) => Math.abs(other.x - label.x) < 200 && Math.abs(other.y - label.y) < 14)) label.y -= 14;
      labels.push(label);
      svg.append(drawn("text", { ...label, class: "mark", "aria-hidden": "true" }, candidate.roles));
    }
  }

  /** A disc; for a candidate that was rejected after it was measured, a cross. */
  function shape(candidate, x, y) {
    if (candidate.refused) return `M${x - 4} ${y - 4}l8 8m0 -8l-8 8`;
    return `M${x - 5} ${y}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0`;
  }

  function legend(dots) {
    const texts = {
      ranking: "ranking",
      heuristics: "heuristics",
      engines: "every engine",
      knobs: "other knobs",
      legacy: "v7 functions",
      wrong: "rejected after it was measured",
    };
    const items = Object.entries(texts).filter(([kind]) => dots.some((dot) => kindOf(dot) === kind));
    return element(
      "ul",
      { class: "legend" },
      ...items.map(([kind, text]) => {
        const mark = drawn("path", { class: `dot ${kind}`, d: shape({ refused: kind === "wrong" }, 7, 7) });
        return element("li", {}, drawn("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, mark), text);
      }),
    );
  }

  main.append(makeTable(data.problems, columns, "problems", "Choose a problem to see its candidates", opener));
  const terms = element("dl", { class: "terms" });
  for (const column of columns.filter((one) => one.meaning)) {
    terms.append(element("dt", {}, column.title), element("dd", {}, column.meaning));
  }
  main.append(terms);
  if (data.failed.length) {
    const failed = [
      { key: "text", title: "Problem", searched: true },
      { key: "reason", title: "Reason", searched: true },
    ];
    main.append(element("h2", {}, "Problems without a choice"));
    main.append(makeTable(data.failed, failed, "failures", "Problems that could not be tuned"));
  }
}

if (typeof document !== "undefined") start(document);
if (typeof module !== "undefined") {
  module.exports = { bytesText, describe, dotsOf, filledColumns, filtered, kindOf, logarithmicAxis, millisecondsText, ratioText };
  Object.assign(module.exports, { shownColumns, sizeRungs, sorted, timeRungs });
}
