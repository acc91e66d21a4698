// Headings sort their column: best first, then the other way, and then in the order of the page again. Numbers are sorted by their
// value, which Python states where it is known, and cells without one come last.
const NUMBER = /^[≈≠<>~×]?\s*([-−+]?[\d,]*\.?\d+(?:e[-+]?\d+)?)\s*(%|[kMGTPE]?B?|μs|ms|s|min|h)?(?:\s*[[(].*)?$/i; // an interval may follow
const SIZES = { "μs": 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, "%": 0.01, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18 };
const LACKING = new Set(["", "–", "-", "failed", "none", "unknown"]);

// Without what the page adds for its lines: spaces that do not break, and places where long words do.
const unspaced = (text) => text?.replaceAll("\u00a0", " ").replaceAll("\u200b", "");
const textOf = (cell) => unspaced(cell?.firstChild?.textContent ?? "").trim();

function valueOf(cell) {
  if (cell?.dataset.value) return Number(cell.dataset.value);
  const found = NUMBER.exec(textOf(cell));
  if (!found) return NaN;
  const unit = found[2] ?? "";
  return Number(found[1].replaceAll(",", "").replace("−", "-")) * (SIZES[unit] ?? SIZES[unit[0]] ?? 1);
}

// The cell of each column; a wide cell is that of its first column.
const cellsOf = (row) => [...row.cells].flatMap((cell) => [cell, ...Array(cell.colSpan - 1).fill(null)]);

function sorted(rows, column, direction) {
  const keys = new Map(rows.map((row) => [row, cellsOf(row)[column]]));
  const lacks = (row) => LACKING.has(textOf(keys.get(row))) || keys.get(row)?.colSpan !== 1;
  const numeric = rows.every((row) => lacks(row) || !Number.isNaN(valueOf(keys.get(row))));
  const order = numeric
    ? (a, b) => valueOf(keys.get(a)) - valueOf(keys.get(b))
    : (a, b) => textOf(keys.get(a)).localeCompare(textOf(keys.get(b)), undefined, { numeric: true });
  return [...rows].sort((a, b) => lacks(a) - lacks(b) || (lacks(a) ? 0 : direction * order(a, b)));
}

function sorting(table) {
  const body = table.tBodies[0], original = [...body.rows], headings = [...table.tHead.rows[0].cells];
  if (original.length < 2) return;
  headings.forEach((heading, column) => {
    if (!heading.textContent.trim()) return;
    const button = make("button", "", { type: "button", className: "sort" });
    button.append(...heading.childNodes);
    heading.append(button);
    heading.classList.add("sorts");
    const directions = heading.dataset.best === "max" ? ["descending", "ascending"] : ["ascending", "descending"];
    heading.addEventListener("click", () => { // anywhere; the button is for the keyboard
      const next = directions[directions.indexOf(heading.getAttribute("aria-sort")) + 1];
      for (const each of headings) each.removeAttribute("aria-sort");
      if (next) heading.setAttribute("aria-sort", next);
      body.append(...(next ? sorted(original, column, next === "ascending" ? 1 : -1) : original));
    });
  });
}

// The notes of a column, such as intervals, have a column of their own in the file.
function tableRows(table) {
  const headings = [...table.tHead.rows[0].cells].map((cell) => textOf(cell.querySelector("button") ?? cell));
  const rows = [...table.tBodies[0].rows].map(cellsOf);
  const note = (cell) => unspaced(cell?.querySelector("small")?.textContent);
  const noted = headings.map((_, i) => rows.some((row) => note(row[i])));
  const wide = (heads, cells) => cells.flatMap((cell, i) => (noted[i] ? heads(cell) : heads(cell).slice(0, 1)));
  return [
    wide((name) => [name, `${name}, note`], headings),
    ...rows.map((row) => wide((cell) => [cell?.dataset.value ?? textOf(cell), note(cell)], row)),
  ];
}

function tableFile(frame) {
  const table = frame.querySelector("table"), caption = document.getElementById(table.getAttribute("aria-labelledby"));
  const button = make("button", "CSV", { type: "button", className: "tool", title: "Save as CSV" });
  const name = caption.querySelector("b").textContent, text = make("span");
  button.setAttribute("aria-label", `Save ${name} as CSV`);
  button.addEventListener("click", () => download(`${fileName(name)}.csv`, csv(tableRows(table)), "text/csv"));
  text.append(...caption.childNodes); // the name of the table, without the button
  text.id = caption.id;
  caption.removeAttribute("id");
  caption.append(text, " ", button);
}

components.push([".table > table:not(.fixed)", sorting], [".table", tableFile]);
