// Tokens as the page shows them: { text, bits, alternatives: [[text, probability], …], count, symbol }. A character of
// several tokens, such as the bytes of an emoji, is one of them: its bits are their sum.
const REPLACEMENT = "\ufffd";
const isPart = (token) => token.name.includes(REPLACEMENT);

function shown(tokens, text) {
  return {
    text,
    name: tokens.length === 1 ? tokens[0].name : text,
    bits: tokens.reduce((sum, token) => sum + token.bits, 0),
    alternatives: tokens[0].alternatives,
    count: tokens.length,
    symbol: tokens.length === 1 && isSymbol(tokens[0].name) && text === tokens[0].name,
  };
}

const bitsOf = (logprob) => (logprob === null || logprob === undefined ? Infinity : Math.max(0, -logprob * BITS));
const byProbability = (a, b) => b[1] - a[1];

// The tokens of an answer of /v1/score. Its offsets count characters, not the units of JavaScript's strings.
function scoredTokens(score) {
  const characters = Array.from(score.text);
  const result = [];
  let group = [], start = 0, end = 0;
  const close = () => {
    if (group.length) result.push(shown(group, characters.slice(start, end).join("") || group[0].name));
    group = [];
  };
  for (const each of score.tokens) {
    const alternatives = (each.top ?? []).map((top) => [top.text, Math.exp(top.logprob)]).sort(byProbability);
    const token = { name: each.text, bits: bitsOf(each.logprob), alternatives };
    const continues = group.length && isPart(token) && isPart(group[0]) && (each.start < end || end === start);
    if (!continues) {
      close();
      [start, end] = [each.start, each.end];
    }
    group.push(token);
    end = Math.max(end, each.end);
  }
  close();
  return result;
}

// The tokens of one choice of a stream of completions, without their places in the text.
function streamedTokens(choice) {
  const { tokens = [], token_logprobs: values = [], top_logprobs: tops = [] } = choice.logprobs ?? {};
  return tokens.map((name, i) => ({
    name,
    bits: bitsOf(values[i]),
    alternatives: Object.entries(tops?.[i] ?? {}).map(([text, logprob]) => [text, Math.exp(logprob)]).sort(byProbability),
  }));
}

// Joins the pieces of a streamed text with its tokens. A piece may come after its first tokens, when they are parts of
// a character, or when the server holds text back that could begin the stop string.
class TokenJoiner {
  constructor() {
    this.waiting = [];
    this.text = "";
  }

  // Return the tokens that are complete after a piece.
  add(tokens, piece) {
    this.waiting.push(...tokens);
    this.text += piece;
    const ready = [];
    for (let next = this.next(); next; next = this.next()) ready.push(next);
    return ready;
  }

  next() {
    const [token] = this.waiting;
    if (!this.text) return null;
    if (!token) return this.takePlain();
    if (!isPart(token)) {
      if (!this.text.startsWith(token.name) && token.name.startsWith(this.text)) return null; // more of it is coming
      return this.take(1, this.text.startsWith(token.name) ? token.name.length : this.lengthOfOther(token));
    }
    const parts = this.waiting.findIndex((each) => !isPart(each));
    if (parts < 0) return this.take(this.waiting.length, this.text.length);
    const end = this.text.indexOf(this.waiting[parts].name);
    if (end === 0) return this.take(parts, 0); // bytes that are no character, and leave no text
    return this.take(parts, end < 0 ? this.text.length : end);
  }

  // A text that begins otherwise than its first token, as where a tokenizer drops the first space of a text.
  lengthOfOther(token) {
    const bare = token.name.trimStart();
    return bare && this.text.startsWith(bare) ? bare.length : Math.min(token.name.length, this.text.length);
  }

  take(tokens, length) {
    const text = this.text.slice(0, length);
    this.text = this.text.slice(length);
    const group = this.waiting.splice(0, tokens);
    return shown(group, text || group.map((each) => each.name).join(""));
  }

  // Text for which the server has given no tokens.
  takePlain() {
    const { text } = this;
    this.text = "";
    return { text, name: text, bits: 0, alternatives: [], count: 0, symbol: false };
  }

  // What is left at the end: the rest of the text, or the token that ends it. Other tokens without text belong to a stop string.
  rest() {
    const [first] = this.waiting;
    if (this.text && first) return [this.take(this.waiting.length, this.text.length)];
    return first && isSymbol(first.name) ? [shown([first], first.name)] : [];
  }
}

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
    const tokens = [...this.group.querySelectorAll(".token")]; // without the texts between those of a session
    return tokenReached(key, this.group, tokens.indexOf(token), tokens);
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

// An answer and its source, whose tokens are shaded by the alignment with the token under the pointer or with the
// focus: a token of the answer shows what it was read from, a token of the source shows what it was used for.
function linkedTexts({ source_tokens: source, target_tokens: target, alignment }) {
  const sides = [{ name: "Source", tokens: source }, { name: "Answer", tokens: target }];
  const figure = make("figure", "", { className: "links" });
  figure.append(scale(["none", "largest weight"]));
  for (const side of sides) {
    side.group = linkedGroup(side);
    figure.append(make("p", side.name, { className: "over" }), side.group);
    side.spans = [...side.group.children];
  }
  const [sources, targets] = sides;
  const weights = (side, place) => (side === targets ? alignment[place] ?? [] : alignment.map((row) => row[place] ?? 0));

  function show(side, place) {
    const other = side === targets ? sources : targets;
    const row = weights(side, place), largest = Math.max(...row, Number.MIN_VALUE);
    for (const each of sides) each.spans.forEach((span) => shadeLink(span, 0, span === side.spans[place]));
    other.spans.forEach((span, i) => shadeLink(span, (row[i] ?? 0) / largest, false, row[i]));
  }

  for (const side of sides) linkListeners(side, (place) => show(side, place));
  show(targets, 0);
  return figure;
}

function linkedGroup({ name, tokens }) {
  const group = make("div", "", { className: "tokens", dir: "auto" });
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", `${name}, token by token: arrow keys go from token to token`);
  tokens.forEach((token, i) => {
    const span = make("span", shownText(token), { className: isSymbol(token) ? "token symbol" : "token", tabIndex: i ? -1 : 0 });
    if (isSymbol(token)) span.dir = "ltr";
    span.setAttribute("role", "button");
    group.append(span);
  });
  return group;
}

function shadeLink(span, share, isHeld, weight) {
  const shade = Math.sqrt(share); // small weights can be seen, too
  span.style.setProperty("--shade", shade.toFixed(2));
  span.dataset.level = Math.round(4 * shade);
  span.classList.toggle("held", isHeld);
  span.title = weight === undefined ? "" : percent(weight);
}

function linkListeners({ group, spans }, show) {
  const of = (event) => spans.indexOf(event.target.closest?.(".token"));
  const go = (span) => {
    for (const each of spans) each.tabIndex = each === span ? 0 : -1;
    span.focus();
  };
  group.addEventListener("pointerover", (event) => of(event) >= 0 && show(of(event)));
  group.addEventListener("focusin", (event) => of(event) >= 0 && show(of(event)));
  group.addEventListener("click", (event) => of(event) >= 0 && go(spans[of(event)]));
  group.addEventListener("keydown", (event) => {
    const to = tokenReached(event.key, group, of(event), spans);
    if (!to) return;
    event.preventDefault();
    go(to);
  });
}
