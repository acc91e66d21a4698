// What pages.py asks of a page: each function returns a list of problems in words, or places to click on.
window.checks = (() => {
  const chosen = {}; // what is clicked on, for the questions that follow
  const middle = (element) => {
    element.scrollIntoView({ block: "center", behavior: "instant" });
    const { left, top, width, height } = element.getBoundingClientRect();
    return [left + width / 2, top + height / 2];
  };
  const named = (element) => `${element.tagName.toLowerCase()}${element.className?.baseVal ?? element.className ? `.${element.className.baseVal ?? element.className}` : ""} “${element.textContent.trim().slice(0, 40)}”`;
  const scrolls = (element) => element && (["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(element).overflowX) || scrolls(element.parentElement));
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));

  return {
    times() {
      const [load] = performance.getEntriesByType("navigation");
      const paint = performance.getEntriesByName("first-contentful-paint")[0];
      return [load.loadEventEnd, paint ? paint.startTime : NaN];
    },

    // A document wider than its window; elements in boxes that scroll are not to blame.
    overflow() {
      const wide = document.documentElement.clientWidth;
      if (document.documentElement.scrollWidth <= wide) return [];
      const parts = [...document.body.querySelectorAll("*")].filter((each) => each.getBoundingClientRect().right > wide + 1
        && !scrolls(each.parentElement) && !each.closest(".skip, .aside"));
      return [`${document.documentElement.scrollWidth} px wide in ${wide}: ${parts.slice(0, 3).map(named).join("; ")}`];
    },

    // Labels of a drawing that cover each other by a third of the smaller one, or that its edge cuts.
    labels() {
      const problems = [];
      for (const svg of document.querySelectorAll(".drawing svg")) {
        const title = svg.closest("figure").querySelector("figcaption b").textContent;
        const frame = svg.getBoundingClientRect();
        const texts = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]).filter(([text]) => text.trim());
        for (const [i, [text, box]] of texts.entries()) {
          if (box.left < frame.left - 3 || box.right > frame.right + 3 || box.top < frame.top - 3 || box.bottom > frame.bottom + 3) problems.push(`${title} cuts “${text}”`);
          for (const [other, its] of texts.slice(i + 1)) {
            const across = Math.min(box.right, its.right) - Math.max(box.left, its.left);
            const along = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
            const smaller = Math.min(box.width * box.height, its.width * its.height);
            if (across > 0 && along > 0 && across * along > smaller / 3) problems.push(`${title}: “${text}” and “${other}” overlap`);
          }
        }
      }
      return problems;
    },

    legend() {
      const labels = [...document.querySelectorAll(".drawing [data-label][role=button]")];
      const label = labels.find((each) => each.checkVisibility()); // one in a folded section cannot be clicked
      return label && middle(label);
    },
    dimmed: () => document.querySelectorAll(".dim").length,

    sort() {
      const table = [...document.querySelectorAll(".table > table")].find((each) => each.tBodies[0].rows.length > 2 && each.querySelector(".sort"));
      if (!table) return null;
      const heads = [...table.tHead.rows[0].cells];
      const column = heads.findIndex((each, i) => i && each.classList.contains("number"));
      Object.assign(chosen, { table, head: heads[Math.max(0, column)] });
      return middle(chosen.head.querySelector(".sort"));
    },
    order: () => [chosen.head.getAttribute("aria-sort") ?? "", ...[...chosen.table.tBodies[0].rows].map((row) => row.cells[0].textContent)],

    // The rectangle to draw in the first plot, from a quarter to three quarters of it.
    zoom() {
      for (const figure of document.querySelectorAll("figure.plot")) {
        const data = JSON.parse(figure.querySelector("script.data")?.textContent ?? "null"), svg = figure.querySelector("svg");
        if (!data || !svg.getClientRects().length) continue;
        middle(svg);
        chosen.svg = svg;
        const [left, top, right, bottom] = data.plots[0].box, matrix = svg.getScreenCTM();
        return [0.25, 0.75].map((part) => {
          const { x, y } = new DOMPoint(left + part * (right - left), top + part * (bottom - top)).matrixTransform(matrix);
          return [x, y];
        });
      }
      return null;
    },
    view: () => chosen.svg.getAttribute("viewBox"),

    token() {
      const tokens = document.querySelectorAll(".surprisal .tokens .token");
      return tokens.length ? middle(tokens[tokens.length >> 1]) : null;
    },
    box: () => [...document.querySelectorAll(".details")].filter((each) => !each.hidden).length,

    async folded() {
      const problems = [];
      for (const each of document.querySelectorAll("details")) {
        const before = each.open;
        each.querySelector("summary").click();
        await frame();
        if (each.open === before) problems.push(`“${each.querySelector("summary").textContent}” does not unfold`);
      }
      return problems;
    },

    // Every button that saves something, one after another; the number of files that must come. Chromium drops a frame's
    // files beyond 10 in a second, which nobody reaches by hand.
    async save() {
      const buttons = [...document.querySelectorAll(".tools button, button.tool")].filter((each) => /SVG|PNG|CSV/.test(each.textContent));
      for (const button of buttons) {
        button.click();
        await new Promise((done) => setTimeout(done, 150));
      }
      return buttons.length;
    },

    async axe() {
      const found = await axe.run(document, { resultTypes: ["violations"] });
      return found.violations.map(({ impact, id, nodes }) => ({ impact, id, count: nodes.length, where: nodes[0].html.slice(0, 160) }));
    },
  };
})();
