// The numbers of a unit at one token; buttons, arrow keys and the tokens lead to others.
function stepper(figure) {
  const data = JSON.parse(figure.querySelector("script.data").textContent);
  const select = figure.querySelector("select"), steps = [...figure.querySelectorAll(".step")];
  const written = (value) => (Math.round(value * 1000) / 1000 || 0).toFixed(3).replace("-", "−");
  let now = data.first;
  const show = (to) => {
    now = Math.max(0, Math.min(steps.length - 1, to));
    const row = data.units[select.value][now];
    const values = Object.fromEntries(data.names.map((name, i) => [name, row[i]]));
    for (const each of figure.querySelectorAll("[data-name]")) each.textContent = written(values[each.dataset.name]);
    for (const each of figure.querySelectorAll("[data-product]")) {
      each.textContent = written(each.dataset.product.split("|").reduce((product, name) => product * values[name], 1));
    }
    steps.forEach((step, i) => (i === now ? step.setAttribute("aria-current", "step") : step.removeAttribute("aria-current")));
  };
  figure.querySelector(".controls").hidden = false;
  figure.querySelector(".static").hidden = true;
  figure.querySelector(".back").addEventListener("click", () => show(now - 1));
  figure.querySelector(".on").addEventListener("click", () => show(now + 1));
  select.addEventListener("change", () => show(now));
  steps.forEach((step, i) => step.addEventListener("click", () => show(i)));
  figure.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || event.target === select) return;
    event.preventDefault();
    show(now + by);
  });
  select.parentElement.hidden = data.units.length < 2;
}
components.push([".stepper", stepper]);
