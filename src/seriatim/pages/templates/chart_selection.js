// Names in the legends select their series in every figure: the others are dimmed. Shift adds to the selection, and a
// second click ends it.
const selected = new Set();

function dimmed({ data }, index) {
  return data.series.some((name) => selected.has(name)) && !selected.has(data.series[index]);
}

function showSelection() {
  for (const chart of charts) {
    for (const element of chart.svg.querySelectorAll("[data-series], [data-label]")) {
      const index = Number(element.dataset.series ?? element.dataset.label);
      element.classList.toggle("dim", dimmed(chart, index));
      if (element.hasAttribute("aria-pressed")) element.setAttribute("aria-pressed", selected.has(chart.data.series[index]));
    }
  }
}

function select(name, more) {
  const only = selected.size === 1 && selected.has(name);
  if (more ? !selected.delete(name) : !only) {
    if (!more) selected.clear();
    selected.add(name);
  } else if (!more) selected.clear();
  showSelection();
}

function selectable({ svg, data }) {
  const names = [];
  for (const label of svg.querySelectorAll("[data-label]")) {
    const name = data.series[label.dataset.label];
    label.addEventListener("click", (event) => select(name, event.shiftKey));
    label.addEventListener("mousedown", (event) => event.preventDefault()); // which would select text
    if (!label.querySelector("text")) continue;
    for (const [key, value] of [["role", "button"], ["aria-pressed", "false"], ["aria-label", `Show only ${name}`]]) label.setAttribute(key, value);
    label.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { selected.clear(); showSelection(); }
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      select(name, event.shiftKey);
    });
    names.push(label);
  }
  oneTabStop(names);
}
