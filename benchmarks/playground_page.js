// What playground_checks.py measures within the playground; most functions return a list of problems in words.
window.checks = (() => {
  const visible = (element) => element.checkVisibility({ visibilityProperty: true });

  // A colour as [red, green, blue, alpha]; a canvas converts every notation.
  const context = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  function channels(colour) {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  }
  function background(element) {
    for (let each = element; each; each = each.parentElement) {
      const colour = channels(getComputedStyle(each).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  }
  const linear = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  function contrast(first, second) {
    const [dark, light] = [luminance(first), luminance(second)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  }

  return {
    // Count the steps in which tokens are added to an element.
    watch(element) {
      window.steps = [];
      new MutationObserver((records) => {
        const added = records.flatMap((record) => [...record.addedNodes]).filter((node) => node.className === "token").length;
        if (added) window.steps.push(added);
      }).observe(element, { childList: true, subtree: true });
    },

    overflow() {
      const width = document.documentElement.clientWidth;
      if (document.documentElement.scrollWidth <= width) return [];
      const wide = [...document.body.querySelectorAll("*")].filter((each) => visible(each) && each.getBoundingClientRect().right > width + 1);
      return [`${document.documentElement.scrollWidth} px wide in ${width}: ${wide.slice(-2).map((each) => each.outerHTML.slice(0, 100)).join("; ")}`];
    },

    // Texts, values and placeholders that are too similar to what is behind them.
    contrast() {
      const problems = new Set();
      const compare = (element, colour, text) => {
        const ratio = contrast(channels(colour), background(element));
        if (ratio < 4.5) problems.add(`${ratio.toFixed(2)}: “${text.trim().slice(0, 30)}” in ${element.tagName.toLowerCase()}.${element.className}`);
      };
      const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (walker.currentNode.data.trim() && visible(element) && !["SCRIPT", "STYLE"].includes(element.tagName)) compare(element, getComputedStyle(element).color, walker.currentNode.data);
      }
      for (const field of document.querySelectorAll("input, select, textarea")) {
        if (!visible(field)) continue;
        compare(field, getComputedStyle(field).color, field.value || "value");
        if (field.placeholder) compare(field, getComputedStyle(field, "::placeholder").color, field.placeholder);
      }
      return [...problems];
    },

    // Fields without a name, and parts that the keyboard does not reach.
    names() {
      const fields = [...document.querySelectorAll("input, select, textarea")].filter((field) => visible(field) && !field.labels.length);
      const buttons = [...document.querySelectorAll("button")].filter((button) => visible(button) && !button.textContent.trim());
      return [...fields, ...buttons].map((each) => `no name: ${each.outerHTML.slice(0, 80)}`);
    },

    async axe() {
      const { violations } = await axe.run(document, { resultTypes: ["violations"], iframes: false });
      return violations.map(({ impact, id, nodes }) => `axe: ${impact} ${id}: ${nodes[0].html.slice(0, 120)}`);
    },
  };
})();
