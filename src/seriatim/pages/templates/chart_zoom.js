// A rectangle drawn with the mouse in a plot becomes the view of the drawing; a double click, Escape or the menu
// restores it. The wheel scrolls the page, and fingers zoom as everywhere.
const SMALLEST = 8; // side of a rectangle that counts, in units of the drawing

function zoom(chart) {
  const { svg, data } = chart;
  const whole = svg.getAttribute("viewBox");
  const [, , width, height] = whole.split(" ").map(Number);
  const band = drawn("rect");
  band.setAttribute("class", "band");
  let start = null;

  const restore = () => {
    svg.setAttribute("viewBox", whole);
    svg.classList.remove("zoomed");
  };
  const rectangle = (event) => {
    const { x, y } = inDrawing(svg, event), [left, top, right, bottom] = start.box;
    const [toX, toY] = [Math.max(left, Math.min(right, x)), Math.max(top, Math.min(bottom, y))];
    return { x: Math.min(start.x, toX), y: Math.min(start.y, toY), width: Math.abs(toX - start.x), height: Math.abs(toY - start.y) };
  };
  const finish = () => { start = null; chart.dragging = false; band.remove(); };

  svg.style.aspectRatio = `${width} / ${height}`;
  svg.addEventListener("pointerdown", (event) => {
    if (event.button || event.pointerType === "touch" || event.target.closest("[data-label]")) return;
    const { x, y } = inDrawing(svg, event);
    const plot = data.plots.find(({ box }) => within(box, x, y));
    start = plot ? { x, y, box: plot.box } : null;
  });
  svg.addEventListener("selectstart", (event) => start && event.preventDefault());
  svg.addEventListener("pointermove", (event) => {
    if (!start) return;
    const sides = rectangle(event);
    if (!chart.dragging && Math.max(sides.width, sides.height) < SMALLEST) return;
    if (!chart.dragging) svg.setPointerCapture(event.pointerId);
    chart.dragging = true;
    for (const [side, value] of Object.entries(sides)) band.setAttribute(side, value);
    svg.append(band);
  });
  svg.addEventListener("pointerup", (event) => {
    const view = chart.dragging && rectangle(event);
    finish();
    if (!view || view.width < SMALLEST || view.height < SMALLEST) return;
    svg.setAttribute("viewBox", `${view.x} ${view.y} ${view.width} ${view.height}`);
    svg.classList.add("zoomed");
  });
  svg.addEventListener("pointercancel", finish);
  svg.addEventListener("dblclick", restore);
  chart.restore = restore;
  document.addEventListener("keydown", (event) => event.key === "Escape" && restore());
  addEventListener("beforeprint", restore);
}
