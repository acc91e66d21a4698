// A figure has a wide and a narrow drawing, of which the page shows one; a switch has one of several figures.
const charts = [];
let chartBox = null;

function chart(figure) {
  if (!chartBox) {
    chartBox = make("div", "", { className: "details point", hidden: true });
    chartBox.setAttribute("role", "status");
    document.body.append(chartBox);
  }
  const title = figure.querySelector("figcaption b").textContent;
  const own = [...figure.querySelectorAll(".drawing")].map((drawing) => {
    const svg = drawing.querySelector("svg"), data = JSON.parse(drawing.querySelector("script.data")?.textContent ?? "null");
    const option = drawing.closest(".option")?.querySelector(".name").textContent.replace(/\.$/, "");
    const name = [title, option].filter(Boolean).join(", ");
    return { figure, svg, drawing, box: chartBox, data: data ?? { series: [], plots: [] }, view: svg.getAttribute("viewBox"), name, file: fileName(name), dragging: false };
  });
  const shown = () => own.find(({ drawing }) => drawing.offsetParent) ?? own[0];
  for (const each of own) {
    if (each.data.plots.length) each.svg.setAttribute("role", "group"); // an image has no parts that can be reached
    chartPoints(each);
    zoom(each);
    selectable(each);
    charts.push(each);
  }
  figure.append(menu(title, shown));
  const choice = figure.querySelector("select");
  if (!choice) return;
  const options = [...figure.querySelectorAll(".option")];
  const choose = () => options.forEach((option, i) => { option.hidden = String(i) !== choice.value; });
  choice.parentElement.hidden = options.length < 2;
  for (const option of options) option.querySelector(".name").hidden = true;
  choice.addEventListener("change", choose);
  choose();
}

// The one menu of a figure: its files, and the whole figure after a part of it was enlarged.
function menu(title, shown) {
  const details = make("details", "", { className: "menu" }), list = make("div");
  const summary = make("summary", "⋯", { title: "Save or restore the figure" });
  summary.setAttribute("aria-label", `Menu of ${title}`);
  const entries = {
    "Save as SVG": () => saveSvg(shown()), "Save as PNG": () => savePng(shown()), "Save as CSV": () => saveCsv(shown()),
    "Whole figure": () => shown().restore(),
  };
  for (const [name, act] of Object.entries(entries)) {
    const button = make("button", name, { type: "button" });
    button.addEventListener("click", () => { details.open = false; summary.focus(); act(); });
    list.append(button);
  }
  const [, , table, whole] = list.children;
  details.addEventListener("toggle", () => {
    table.hidden = !shown().data.plots.length;
    whole.hidden = !shown().svg.classList.contains("zoomed");
  });
  details.addEventListener("keydown", (event) => { if (event.key === "Escape") { details.open = false; summary.focus(); } });
  document.addEventListener("pointerdown", (event) => { if (!details.contains(event.target)) details.open = false; });
  details.append(summary, list);
  return details;
}

components.push(["figure.chart", chart]);
