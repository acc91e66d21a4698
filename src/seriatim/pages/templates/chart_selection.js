// Names in the legends select their series in every figure: the others are dimmed. Shift adds to the selection, and a
// second click ends it.
const selected = new Set();

function dimmed({ data }, index) {
  return data.series.some((name) => selected.has(name)) && !selected.has(data.series[index]);
}

function selection(charts) {
  const update = () => {
    for (const chart of charts) {
      for (const part of chart.svg.querySelectorAll("[data-series], [data-label]")) {
        const index = Number(part.dataset.series ?? part.dataset.label);
        part.classList.toggle("dim", dimmed(chart, index));
        if (part.hasAttribute("aria-pressed")) part.setAttribute("aria-pressed", selected.has(chart.data.series[index]));
      }
    }
  };
  const choose = (name, more) => {
    const only = selected.size === 1 && selected.has(name);
    if (more ? !selected.delete(name) : !only) {
      if (!more) selected.clear();
      selected.add(name);
    } else if (!more) selected.clear();
    update();
  };
  for (const { svg, data } of charts) {
    const names = [];
    for (const label of svg.querySelectorAll("[data-label]")) {
      const name = data.series[label.dataset.label];
      label.addEventListener("click", (event) => choose(name, event.shiftKey));
      label.addEventListener("mousedown", (event) => event.preventDefault()); // which would select text
      if (!label.querySelector("text")) continue;
      for (const [key, value] of [["role", "button"], ["aria-pressed", "false"], ["aria-label", `Show only ${name}`]]) label.setAttribute(key, value);
      label.addEventListener("keydown", (event) => {
        if (event.key === "Escape") { selected.clear(); update(); }
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        choose(name, event.shiftKey);
      });
      names.push(label);
    }
    oneTabStop(names);
  }
}
