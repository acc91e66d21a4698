// The point of a chart that is nearest to the pointer, or that arrow keys reach, with its values in a box. The values
// are the data of the figure, and "at" is their place in the drawing; a level line has no place along one axis.
const REACH = 40; // distance from which a point is shown, in units of the drawing
const TOGETHER = 1.5; // distance up to which points are shown together
const MOST = 6; // points in a box
let pointer = "";

function chartPoints(chart) {
  const { drawing, svg, data } = chart;
  const points = data.plots.flatMap((plot) => plot.lines.flatMap((line) => line.at.map(([x, y], i) => ({ plot, line, i, x, y }))))
    .filter(({ plot: { box }, x, y }) => between(x ?? box[0], box[0], box[2]) && between(y ?? box[1], box[1], box[3]));
  const maps = data.plots.flatMap((plot) => plot.maps.map((map) => ({ plot, map })));
  if (!points.length && !maps.length) return;
  const halo = drawn("circle");
  halo.setAttribute("class", "halo");
  halo.setAttribute("r", 5);
  let held = null;

  const hide = () => { halo.remove(); chart.box.hidden = true; };
  const show = (x, y, entries) => {
    halo.setAttribute("cx", x);
    halo.setAttribute("cy", y);
    svg.append(halo);
    chart.box.replaceChildren(...entries);
    const at = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
    placed(chart.box, { left: at.x + 10, top: at.y - 6, bottom: at.y + 6 });
  };
  const showPoint = (point, x = point.x ?? point.plot.box[0], y = point.y ?? point.plot.box[1]) => {
    held = point;
    const same = points.filter((each) => each !== point && !dimmed(chart, each.line.series)
      && Math.hypot((each.x ?? x) - x, (each.y ?? y) - y) <= TOGETHER);
    show(x, y, [point, ...same].slice(0, MOST).flatMap((each) => values(data, each)));
  };
  const near = ({ x, y }) => {
    const known = points.filter(({ plot, line }) => within(plot.box, x, y) && !dimmed(chart, line.series));
    const far = (point) => Math.hypot((point.x ?? x) - x, (point.y ?? y) - y);
    const point = known.reduce((best, each) => (best && far(best) <= far(each) ? best : each), null);
    if (point && far(point) <= REACH) return showPoint(point, point.x ?? x, point.y ?? y);
    const found = maps.find(({ map }) => within(map.box, x, y));
    return found ? showCell(found, x, y) : hide();
  };
  const showCell = ({ plot, map }, x, y) => {
    const [left, top, right, bottom] = map.box;
    const index = (at, start, end, names) => Math.min(names.length - 1, Math.floor(((at - start) / (end - start)) * names.length));
    const row = index(y, top, bottom, map.rows), column = index(x, left, right, map.columns);
    const [down, across] = plot.y_name === plot.x_name ? [] : [plot.y_name, plot.x_name];
    const terms = [[down || "row", map.rows[row]], [across || "column", map.columns[column]], [map.name || "value", written(map.values[row][column])]];
    show(x, y, [make("b", plot.title), listOf(terms)]);
  };

  drawing.addEventListener("pointermove", (event) => {
    const place = `${event.clientX} ${event.clientY}`;
    if (place === pointer) return; // the page moved, not the pointer
    pointer = place;
    if (chart.dragging) hide(); else near(inDrawing(svg, event));
  });
  drawing.addEventListener("pointerdown", (event) => near(inDrawing(svg, event)));
  drawing.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());
  document.addEventListener("pointerdown", (event) => drawing.contains(event.target) || halo.isConnected && hide());
  drawing.addEventListener("blur", hide);
  if (!points.length) return;
  drawing.tabIndex = 0;
  drawing.setAttribute("role", "application");
  drawing.setAttribute("aria-label", `${chart.name}: left and right go from point to point, up and down from line to line`);
  drawing.addEventListener("focus", () => drawing.matches(":focus-visible") && showPoint(held ?? points[0]));
  drawing.addEventListener("keydown", (event) => {
    if (event.target !== drawing) return;
    if (event.key === "Escape") return hide();
    const own = points.filter((each) => each.line === (held ?? points[0]).line);
    const lines = [...new Set(points.filter(({ line }) => !dimmed(chart, line.series)).map(({ line }) => line))];
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], turn = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    let next = { Home: own[0], End: own.at(-1) }[event.key];
    if (step) next = own[Math.max(0, Math.min(own.length - 1, own.indexOf(held) + step))];
    if (turn && lines.length) {
      const line = lines[(lines.indexOf(held?.line) + turn + lines.length) % lines.length];
      const gap = (each) => Math.abs((each.x ?? 0) - (held?.x ?? 0));
      next = points.filter((each) => each.line === line).reduce((best, each) => (gap(each) < gap(best) ? each : best));
    }
    if (!next) return;
    event.preventDefault();
    showPoint(next);
    halo.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
    showPoint(next);
  });
}

const between = (x, low, high) => x >= low - 2 && x <= high + 2;
const within = (box, x, y) => between(x, box[0], box[2]) && between(y, box[1], box[3]);
const inDrawing = (svg, event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
const nameOf = (data, line) => [data.series[line.series], line.part].filter(Boolean).join(", ");

function values(data, { plot, line, i }) {
  const name = [nameOf(data, line), line.names?.[i]].filter(Boolean).join(": ");
  const terms = ["x", "y"].filter((key) => plot[`${key}_name`] && line[key][i] !== null).map((key) => {
    const ends = line[`${key}_intervals`]?.[i], unit = plot[`${key}_unit`];
    const range = ends ? ` (${written(ends[0], unit)} to ${written(ends[1], unit)})` : "";
    return [plot[`${key}_name`], written(line[key][i], unit) + range];
  });
  return [make("b", name), listOf(terms)];
}

function listOf(terms) {
  const list = make("dl");
  list.append(...terms.flatMap(([name, value]) => [make("dt", name), make("dd", value)]));
  return list;
}

function written(value, unit = "") {
  if (value === null) return "unknown";
  const size = Math.abs(value), prefix = Math.min(6, Math.floor(Math.log10(size) / 3));
  if (unit === "B" && prefix > 0) return `${Number((value / 1e3 ** prefix).toPrecision(4))} ${" kMGTPE"[prefix]}B`;
  const plain = value === 0 || (size >= 1e-3 && size < 1e12);
  const digits = Number.isInteger(value) ? {} : { maximumSignificantDigits: Math.max(4, Math.ceil(Math.log10(size))) };
  return `${plain ? value.toLocaleString("en", digits) : value.toPrecision(3)} ${unit}`.trim();
}
