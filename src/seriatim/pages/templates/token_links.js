// A text whose tokens are shaded by their weights for one token: the one under the pointer, or the one selected last.
function tokenLinks(figure) {
  const tokens = [...figure.querySelectorAll(".tokens > .token")];
  const views = JSON.parse(figure.querySelector("script.weights").textContent);
  const choice = figure.querySelector("select"), about = figure.querySelector(".about"), shares = figure.querySelector(".shares");
  const nameOf = (token) => (token.dataset.text ?? token.textContent).trim().replaceAll("\n", "") || "␣";
  const inPercent = (share) => { // as on the rest of the page: only all of something is 100 %
    if (share < 0.0005 || (share >= 0.9995 && share < 1)) return share < 0.5 ? "under 0.1\u00a0%" : "over 99.9\u00a0%";
    return `${(100 * share).toFixed(share < 0.1 || (share >= 0.995 && share < 1) ? 1 : 0).replace(/\.0$/, "")}\u00a0%`;
  };
  const quoted = (token) => { const text = make("bdi"); text.append("“", make("bdi", nameOf(token)), "”"); return text; };
  let pinned = Number(figure.dataset.pinned);

  // The shades of all tokens for a token, the square roots of their weights relative to the largest, from 0 to 1;
  // undefined for those that are left out.
  function shadesOf(place) {
    const view = views[choice?.value ?? 0], row = view.rows[place - view.row];
    if (row === undefined) return { largest: 0, shades: tokens.map(() => undefined) };
    const shades = tokens.map((_, i) => {
      const at = 3 * (i - view.column), digits = row.slice(at, at + 3);
      return at < 0 || !digits.trim() ? undefined : Number(digits) / 999;
    });
    return { largest: view.largest[place - view.row], shades };
  }

  function show(place) {
    const { largest, shades } = shadesOf(place);
    tokens.forEach((token, i) => {
      const shade = shades[i] ?? 0;
      token.style.setProperty("--shade", shade.toFixed(2));
      token.dataset.level = Math.round(4 * shade);
      token.classList.toggle("later", shades[i] === undefined);
      token.classList.toggle("held", i === place);
    });
    const most = shades.map((shade, i) => [shade ?? 0, i]).filter(([shade]) => shade > 0);
    most.sort((a, b) => b[0] - a[0] || a[1] - b[1]);
    const line = make("p");
    line.append("Selected: ", quoted(tokens[place]), ". ", most.length ? "Largest shares: " : "It has no shares here.");
    most.slice(0, 5).forEach(([shade, i], rank) => {
      line.append(rank ? ", " : "", quoted(tokens[i]), ` ${inPercent(shade ** 2 * largest)}`);
    });
    if (most.length && most.length < 5 && shades.includes(0)) line.append("; others under 0.1\u00a0%");
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
      const to = tokenReached(event.key, group, pinned, tokens);
      if (to) { event.preventDefault(); to.focus(); }
    });
  }
  show(pinned);
}

components.push([".links", tokenLinks]);
