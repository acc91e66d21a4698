// A text whose tokens are shaded by their weights for one token: the one under the pointer, or the one selected last.
function tokenLinks(figure) {
  const tokens = [...figure.querySelectorAll(".tokens > .token")];
  const views = JSON.parse(figure.querySelector("script.weights").textContent);
  const choice = figure.querySelector("select"), about = figure.querySelector(".about"), shares = figure.querySelector(".shares");
  const nameOf = (token) => (token.dataset.text ?? token.textContent).trim().replaceAll("\n", "") || "␣";
  const inPercent = (share) => (share < 0.001 ? "under 0.1\u00a0%" : `${(100 * share).toFixed(share < 0.1 ? 1 : 0).replace(/\.0$/, "")}\u00a0%`); // two digits are stored
  const quoted = (token) => { const text = make("bdi"); text.append("“", make("bdi", nameOf(token)), "”"); return text; };
  let pinned = Number(figure.dataset.pinned);

  // The weights of a token for all tokens, from 0 to 1 relative to the largest; undefined for those that are left out.
  function weightsOf(place) {
    const view = views[choice?.value ?? 0], row = view.rows[place - view.row];
    if (row === undefined) return { largest: 0, weights: tokens.map(() => undefined) };
    const weights = tokens.map((_, i) => {
      const at = 2 * (i - view.column), digits = row.slice(at, at + 2);
      return at < 0 || !digits.trim() ? undefined : Number(digits) / 99;
    });
    return { largest: view.largest[place - view.row], weights };
  }

  function show(place) {
    const { largest, weights } = weightsOf(place);
    tokens.forEach((token, i) => {
      const shade = Math.sqrt(weights[i] ?? 0);
      token.style.setProperty("--shade", shade.toFixed(2));
      token.dataset.level = Math.round(4 * shade);
      token.classList.toggle("later", weights[i] === undefined);
      token.classList.toggle("held", i === place);
    });
    const most = weights.map((weight, i) => [weight ?? 0, i]).filter(([weight]) => weight > 0);
    most.sort((a, b) => b[0] - a[0] || a[1] - b[1]);
    const line = make("p");
    line.append("Selected: ", quoted(tokens[place]), ". ", most.length ? "Largest shares: " : "It has no shares here.");
    most.slice(0, 5).forEach(([weight, i], rank) => {
      line.append(rank ? ", " : "", quoted(tokens[i]), ` ${inPercent(weight * largest)}`);
    });
    const rest = weights.filter((weight) => weight === 0).length; // shares that two digits round to nothing
    if (most.length && most.length < 5 && rest) line.append(`; others under ${(Math.ceil(1000 * largest / 198) / 10).toFixed(1)}\u00a0%`);
    shares.replaceChildren(line);
  }

  function pin(place) {
    pinned = Math.max(0, Math.min(tokens.length - 1, place));
    tokens.forEach((token, i) => {
      token.tabIndex = i === pinned ? 0 : -1;
      token.setAttribute("aria-pressed", i === pinned);
    });
    show(pinned);
  }

  if (choice) choice.parentElement.hidden = false;
  choice?.addEventListener("change", () => {
    const view = views[choice.value];
    about.textContent = view.sentence;
    pin(Math.max(view.row, Math.min(view.row + view.rows.length - 1, pinned)));
  });
  for (const group of figure.querySelectorAll(".tokens")) {
    const of = (event) => tokens.indexOf(event.target.closest(".token"));
    group.addEventListener("pointerover", (event) => of(event) >= 0 && show(of(event)));
    group.addEventListener("pointerleave", () => show(pinned));
    group.addEventListener("focusin", (event) => of(event) >= 0 && pin(of(event)));
    group.addEventListener("click", (event) => of(event) >= 0 && tokens[of(event)].focus());
    group.addEventListener("keydown", (event) => {
      const forwards = getComputedStyle(group).direction === "rtl" ? -1 : 1;
      const steps = { ArrowRight: forwards, ArrowLeft: -forwards, ArrowDown: 1, ArrowUp: -1 };
      const to = { Home: 0, End: tokens.length - 1 }[event.key] ?? pinned + (steps[event.key] ?? NaN);
      if (tokens[to]) { event.preventDefault(); tokens[to].focus(); }
    });
  }
  show(pinned);
}
