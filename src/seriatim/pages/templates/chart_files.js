// Files of a figure: the drawing in the colours of the page as SVG and PNG, and its data as CSV.
const SCALE = 8 / 3; // pixels of a PNG for each unit of a drawing, a point: twice those of a screen

const saveSvg = (chart) => download(`${chart.file}.svg`, standalone(chart), "image/svg+xml");
const saveCsv = (chart) => download(`${chart.file}.csv`, csv(chartRows(chart.data)), "text/csv");

async function savePng(chart) {
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(standalone(chart))}`;
  await image.decode();
  const [, , width, height] = chart.view.split(" ").map(Number);
  const canvas = make("canvas", "", { width: Math.round(width * SCALE), height: Math.round(height * SCALE) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => download(`${chart.file}.png`, blob));
}

function standalone({ svg, view }) {
  const copy = svg.cloneNode(true), style = getComputedStyle(root);
  const colour = (name) => style.getPropertyValue(name).trim();
  const parts = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const mixed = (_, one, share, other) => {
    const [a, b] = [parts(colour(one)), parts(colour(other))];
    return `rgb(${a.map((value, i) => Math.round(value * (share / 100) + b[i] * (1 - share / 100))).join(", ")})`;
  };
  for (const extra of copy.querySelectorAll(".halo, .band")) extra.remove();
  for (const each of [copy, ...copy.querySelectorAll("*")]) {
    for (const name of ["class", "tabindex", "role", "aria-pressed", "aria-label", "data-series", "data-label"]) each.removeAttribute(name);
    const own = each.getAttribute("style");
    if (own) each.setAttribute("style", own.replace(/color-mix\(in srgb, var\((--\w+)\) (\d+)%, var\((--\w+)\)\)/g, mixed).replace(/var\((--\w+)\)/g, (_, name) => colour(name)));
  }
  const [, , width, height] = view.split(" "), paper = drawn("rect");
  const settings = { role: "img", viewBox: view, width: `${width}pt`, height: `${height}pt`, "font-family": colour("--sans"), style: `fill: ${colour("--ink")}; stroke-linejoin: round` };
  for (const [name, value] of Object.entries(settings)) copy.setAttribute(name, value);
  for (const [name, value] of [["width", width], ["height", height], ["fill", colour("--paper")]]) paper.setAttribute(name, value);
  copy.prepend(paper);
  return new XMLSerializer().serializeToString(copy);
}

// One row for each point, or for each cell of a heat map; values of axes without a name are only places of names.
function chartRows(data) {
  const [first] = data.plots, titled = data.plots.some(({ title }) => title);
  const keys = ["x", "y"].filter((key) => first[`${key}_name`]);
  const named = data.plots.some(({ lines }) => lines.some(({ names }) => names));
  const start = (plot) => (titled ? [plot.title] : []);
  const points = data.plots.flatMap((plot) => plot.lines.flatMap((line) => line.at.map((_, i) => [
    ...start(plot), nameOf(data, line), ...(named ? [line.names?.[i]] : []), ...keys.map((key) => line[key][i]),
    ...(line.y_intervals?.[i] ?? line.x_intervals?.[i] ?? ["", ""]),
  ])));
  const cells = data.plots.flatMap((plot) => plot.maps.flatMap(({ rows, columns, values }) => rows.flatMap((row, i) => (
    columns.map((column, j) => [...start(plot), row, column, values[i][j]])))));
  const heads = titled ? ["plot"] : [];
  if (cells.length) return [[...heads, first.y_name || "row", first.x_name || "column", first.maps[0]?.name || "value"], ...cells];
  return [[...heads, "series", ...(named ? ["point"] : []), ...keys.map((key) => first[`${key}_name`]), "low", "high"], ...points];
}
