// A text whose tokens are shaded by their surprisal. The tab key reaches one token, arrow keys move from it, and a box
// shows its alternatives. Tokens are added in one step for each frame, so that thousands of them can stream in.
class TokenText {
  constructor(label, outcomes) {
    this.full = Math.log2(Math.max(2, outcomes)); // the bits of the darkest shade: one of so many outcomes, equally likely
    this.details = new WeakMap();
    this.queue = [];
    this.frame = 0;
    this.current = null;
    this.group = make("div", "", { className: "tokens", dir: "auto" });
    this.group.setAttribute("role", "group");
    this.group.setAttribute("aria-label", `${label}, token by token: arrow keys go from token to token`);
    this.element = make("figure", "", { className: "surprisal" });
    this.element.append(scale(["expected", "surprising"]), this.group);
    this.listen();
  }

  // Add a text that the model has read, which has no shades.
  addPlain(text) {
    this.flush();
    if (text) this.group.append(make("span", shownText(text), { className: "lead" }));
  }

  add(tokens) {
    this.queue.push(...tokens);
    this.frame ||= requestAnimationFrame(() => this.flush());
  }

  // Show all tokens that were added.
  flush() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const fragment = document.createDocumentFragment();
    for (const token of this.queue) fragment.append(this.span(token));
    this.queue = [];
    this.group.append(fragment);
    this.current ??= this.select(this.group.querySelector(".token"));
  }

  span(token) {
    const span = make("span", shownText(token.text), { className: token.symbol ? "token symbol" : "token" });
    const shade = Math.min(1, token.bits / this.full);
    span.style.setProperty("--shade", shade.toFixed(2));
    span.dataset.level = Math.round(4 * shade);
    if (token.symbol) span.dir = "ltr";
    this.details.set(span, token);
    return span;
  }

  // Only the selected token is a button. Others are plain text, which is read aloud as a text.
  select(token) {
    if (!token) return null;
    for (const name of ["tabindex", "role", "aria-label"]) this.current?.removeAttribute(name);
    token.tabIndex = 0;
    token.setAttribute("role", "button");
    if (!token.textContent.trim()) token.setAttribute("aria-label", "white space");
    this.current = token;
    return token;
  }

  reached(key, token) {
    const forwards = getComputedStyle(this.group).direction === "rtl" ? -1 : 1;
    const step = { ArrowRight: forwards, ArrowLeft: -forwards, ArrowDown: 1, ArrowUp: -1 }[key];
    const side = step > 0 ? "nextElementSibling" : "previousElementSibling";
    if (key === "Home") return this.group.querySelector(".token");
    if (key === "End") return this.group.lastElementChild;
    if (!step) return null;
    let next = token[side];
    while (next && !next.classList.contains("token")) next = next[side]; // over the texts between those of a session
    return next;
  }

  listen() {
    const { group } = this;
    const of = (event) => event.target.closest?.(".token");
    const show = (token) => tokenBox.show(token, this.details.get(token));
    group.addEventListener("focusin", (event) => of(event) && show(of(event)));
    group.addEventListener("focusout", () => tokenBox.close());
    group.addEventListener("pointerover", (event) => of(event) && show(of(event)));
    group.addEventListener("pointerleave", () => (group.contains(document.activeElement) ? show(document.activeElement) : tokenBox.close()));
    group.addEventListener("click", (event) => of(event) && this.select(of(event)).focus());
    group.addEventListener("keydown", (event) => {
      const token = of(event) && this.reached(event.key, of(event));
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); show(of(event)); }
      if (!token) return;
      event.preventDefault();
      this.select(token).focus();
    });
  }
}

// The one box of the page, which explains the token under the pointer or with the focus.
const tokenBox = {
  element: null,
  held: null,

  show(token, details) {
    this.close();
    this.element ??= document.body.appendChild(make("div", "", { className: "details", hidden: true }));
    this.element.setAttribute("role", "status");
    this.held = token;
    token.classList.add("held");
    const several = details.count > 1 ? `${details.count} tokens, ` : "";
    const note = details.count ? `${several}${decimals(details.bits, 2)} bits: ${percent(2 ** -details.bits)}` : "The server gave no probability.";
    const parts = details.alternatives.length ? [make("div", details.count > 1 ? "Expected for the first:" : "Expected here:"), alternatives(details)] : [];
    this.element.replaceChildren(make("div", note), ...parts);
    placed(this.element, token.getClientRects()[0] ?? token.getBoundingClientRect());
  },

  close() {
    if (this.element) this.element.hidden = true;
    this.held?.classList.remove("held");
    this.held = null;
  },
};

function alternatives(details) {
  const list = make("dl");
  for (const [text, probability] of details.alternatives) {
    const name = make("dt"), isChosen = text === details.name;
    name.append(make(isChosen ? "strong" : "bdi", shownToken(text)));
    list.append(name, make("dd", percent(probability)));
  }
  return list;
}

// The meaning of the shades.
function scale([lightest, darkest]) {
  const element = make("div", "", { className: "scale" });
  element.setAttribute("aria-hidden", "true");
  const steps = [0, 1, 2, 3, 4].map((level) => {
    const step = make("span", "\u2002", { className: "token" });
    step.style.setProperty("--shade", level / 4);
    step.dataset.level = level;
    return step;
  });
  element.append(make("span", lightest), ...steps, make("span", darkest));
  return element;
}
