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
