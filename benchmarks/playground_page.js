// What playground_checks.py asks of the playground: each function returns a value, or a list of problems in words.
window.checks = (() => {
  const query = (selector) => document.querySelector(selector);
  const visible = (element) => element.checkVisibility({ visibilityProperty: true });
  const panel = () => [...document.querySelectorAll("main > section")].find((section) => !section.hidden);
  const inPanel = (selector) => panel().querySelector(selector);
  const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

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
    ready: () => document.querySelectorAll("[role=tab]").length > 0,
    // Those without a limit come first, since some checks ask for long texts.
    models: () => playground.models.toSorted((a, b) => Boolean(a.context) - Boolean(b.context)).map((model) => model.id),
    tabs: () => [...document.querySelectorAll("[role=tab]")].map((tab) => tab.id.slice("tab-".length)),
    chooseModel(id) {
      query("#model").value = id;
      query("#model").dispatchEvent(new Event("change"));
    },
    chooseTab: (name) => query(`#tab-${name}`).click(),
    write(values) {
      for (const [name, value] of Object.entries(values)) panel().querySelector("form").elements[name].value = value;
      panel().querySelector("form").dispatchEvent(new Event("input"));
    },
    go() { inPanel(".go").click(); },
    running: () => inPanel(".go").textContent === "Stop",
    async finished(seconds = 110) {
      const end = performance.now() + 1000 * seconds;
      while (inPanel(".go").textContent === "Stop" && performance.now() < end) await wait(20);
      return inPanel(".go").textContent !== "Stop";
    },
    state: () => inPanel(".state").textContent.trim(),
    error: () => inPanel(".error").textContent,
    output: () => inPanel(".output").textContent,
    tokens: () => inPanel(".output").querySelectorAll(".tokens .token").length,
    command() {
      inPanel("details.curl").open = true;
      return wait(50).then(() => inPanel("details.curl code").textContent);
    },

    // Count the steps in which tokens are added.
    watch() {
      window.steps = [];
      new MutationObserver((records) => {
        const added = records.flatMap((record) => [...record.addedNodes]).filter((node) => node.className === "token").length;
        if (added) window.steps.push(added);
      }).observe(inPanel(".output"), { childList: true, subtree: true });
    },
    steps: () => window.steps,

    selectedTab: () => [query("[role=tab][aria-selected=true]").id, document.activeElement.id, location.hash, panel().getAttribute("aria-labelledby")],
    focusTab: () => query("[role=tab][aria-selected=true]").focus(),
    tabStops: () => inPanel(".output").querySelectorAll("[tabindex='0']").length,
    focusToken: () => inPanel(".output .token[tabindex='0']").focus(),
    focusedToken: () => [...inPanel(".output").querySelectorAll(".tokens .token")].indexOf(document.activeElement),
    box: () => [...document.querySelectorAll(".details")].filter((each) => each.textContent && visible(each)).map((each) => each.textContent).join(),
    attacked: () => Boolean(window.attacked) || inPanel(".output").querySelectorAll("script, img, b, i").length > 0,

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
  };
})();
