function charts() {
  const box = make("div", "", { className: "details point", hidden: true });
  box.setAttribute("role", "status");
  document.body.append(box);
  const all = [...document.querySelectorAll("figure.plot")].map((figure) => {
    const svg = figure.querySelector("svg"), data = JSON.parse(figure.querySelector("script.data")?.textContent ?? "null");
    const title = figure.querySelector("figcaption b").textContent;
    return {
      figure, svg, box, drawing: figure.querySelector(".drawing"), data: data ?? { series: [], plots: [] },
      view: svg.getAttribute("viewBox"), name: title.split(".")[0], file: fileName(title), dragging: false,
    };
  });
  for (const chart of all) {
    if (chart.data.plots.length) chart.svg.setAttribute("role", "group"); // an image has no parts that can be reached
    const restore = make("button", "Whole figure", { type: "button", hidden: true });
    const tools = make("div", "", { className: "tools" });
    tools.setAttribute("role", "toolbar");
    tools.setAttribute("aria-label", chart.name);
    tools.append(...chartFiles(chart), restore);
    chart.figure.append(tools);
    oneTabStop([...tools.children].slice(0, -1));
    chartPoints(chart);
    zoom(chart, restore);
  }
  selection(all);
}

document.addEventListener("DOMContentLoaded", () => {
  themes();
  copies();
  charts();
  document.querySelectorAll(".surprisal .tokens").forEach(surprisal);
  document.querySelectorAll(".links").forEach(tokenLinks);
  document.querySelectorAll(".table > table").forEach(sorting);
  document.querySelectorAll(".table").forEach(tableFile);
});
