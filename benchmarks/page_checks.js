// What page_checks.py measures within a page: times, and problems in words.
window.checks = (() => {
  const named = (element) => `${element.tagName.toLowerCase()}${element.className?.baseVal ?? element.className ? `.${element.className.baseVal ?? element.className}` : ""} “${element.textContent.trim().slice(0, 40)}”`;
  const scrolls = (element) => element && (["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(element).overflowX) || scrolls(element.parentElement));

  return {
    times() {
      const [load] = performance.getEntriesByType("navigation");
      const paint = performance.getEntriesByName("first-contentful-paint")[0];
      return [load.loadEventEnd, paint.startTime];
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

    async axe() {
      const found = await axe.run(document, { resultTypes: ["violations"] });
      return found.violations.map(({ impact, id, nodes }) => ({ impact, id, count: nodes.length, where: nodes[0].html.slice(0, 160) }));
    },
  };
})();
