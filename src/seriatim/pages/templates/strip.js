// A text under a lens: its tokens are shaded by their values, or by their weights for the token under the pointer.
function strip(figure) {
  const tokens = [...figure.querySelectorAll(".tokens > .token")], lenses = JSON.parse(figure.querySelector("script.lenses").textContent);
  const choice = figure.querySelector("select"), told = figure.querySelector(".told"), arcs = drawn("svg");
  const nameOf = (token) => (token.dataset.text ?? token.textContent).replaceAll("↵\n", "↵").replaceAll("\n", "↵").replaceAll(" ", "␣");
  const short = (share) => { // as on the rest of the page: only all of something is 100 %
    if (share < 0.0005 || (share >= 0.9995 && share < 1)) return share > 0.5 ? "over 99.9\u00a0%" : share > 0 ? "under 0.1\u00a0%" : "0\u00a0%";
    return `${(100 * share).toFixed(share < 0.1 || (share >= 0.995 && share < 1) ? 1 : 0).replace(/\.0$/, "")}\u00a0%`;
  };
  let lens = lenses[0], pinned = lens.pinned ?? null;

  // The weights of all tokens for one, from 0 to 1; undefined for those that are left out.
  function weightsOf(place) {
    const weights = tokens.map(() => undefined);
    for (const block of lens.weights) {
      const row = block.rows[place - block.row] ?? "";
      for (let at = 0; at < row.length; at += 3) {
        const digits = row.slice(at, at + 3);
        if (digits.trim()) weights[block.column + at / 3] = (parseInt(digits, 36) / 46655) ** 2;
      }
    }
    return weights;
  }

  function shade(shades) {
    tokens.forEach((token, i) => {
      const level = Math.max(0, Math.min(1, shades[i] ?? 0));
      token.style.setProperty("--shade", level.toFixed(2));
      token.dataset.level = Math.round(4 * level);
      token.classList.toggle("later", shades[i] === undefined);
    });
  }

  function draw(place, largest) {
    const origin = arcs.getBoundingClientRect(), box = (token) => {
      const at = token.getClientRects()[0] ?? token.getBoundingClientRect();
      return { x: at.left + at.width / 2 - origin.left, top: at.top - origin.top, bottom: at.bottom - origin.top };
    };
    arcs.replaceChildren(...largest.filter(([, i]) => i !== place).map(([weight, i]) => {
      const [from, to] = [box(tokens[i]), box(tokens[place])], path = drawn("path");
      const [upper, lower] = from.top <= to.top ? [from, to] : [to, from], height = 8 + Math.min(14, Math.abs(from.x - to.x) / 12);
      const near = Math.abs(from.top - to.top) < 4, middle = (upper.bottom + lower.top) / 2;
      path.setAttribute("d", near ? `M${from.x} ${from.top}C${from.x} ${from.top - height},${to.x} ${to.top - height},${to.x} ${to.top}`
        : `M${upper.x} ${upper.bottom}C${upper.x} ${middle},${lower.x} ${middle},${lower.x} ${lower.top}`);
      path.setAttribute("stroke-width", 1 + 3 * Math.sqrt(weight));
      path.setAttribute("opacity", 0.25 + 0.6 * Math.sqrt(weight));
      return path;
    }));
  }

  function tell(place, text, intro, others) {
    const name = make("bdi");
    name.append("“", make("b", nameOf(tokens[place])), "”");
    told.replaceChildren(name, text ? ` ${text}` : "", others.length ? ` ${intro}` : "", ...others.map(([other, share]) => {
      const item = make("span", "", { className: "other" });
      item.append(make("bdi", other.replaceAll("\n", "↵").replaceAll(" ", "␣")), ` ${short(share)}`);
      return item;
    }));
  }

  function show(place) {
    tokens.forEach((token, i) => token.classList.toggle("held", i === place));
    arcs.replaceChildren();
    if (place === null) { told.textContent = "Point at a token, tap it, or reach it with the arrow keys."; return; }
    if (lens.weights) {
      const weights = weightsOf(place);
      const largest = weights.map((weight, i) => [weight ?? 0, i]).filter(([weight]) => weight > 0).sort((a, b) => b[0] - a[0] || a[1] - b[1]).slice(0, 5);
      shade(weights.map((weight) => weight && Math.sqrt(weight)));
      draw(place, largest);
      tell(place, largest.length ? "" : "has no weights here.", "Largest weights:", largest.map(([weight, i]) => [nameOf(tokens[i]), weight]));
      return;
    }
    const value = lens.values[place], number = Number(value);
    const plain = value == null ? "has no value here." : `${Number.isFinite(number) ? Number(number.toPrecision(3)) : "∞"} ${lens.unit}${lens.unit === "bits" ? ` (${short(2 ** -number)})` : ""}`;
    tell(place, lens.notes[place] || plain, lens.about, lens.details[place] ?? []);
  }

  function pin(place) {
    pinned = place;
    tokens.forEach((token, i) => {
      token.tabIndex = i === (pinned ?? 0) ? 0 : -1;
      token.setAttribute("aria-pressed", i === pinned);
    });
    show(pinned);
  }

  function choose(index) {
    lens = lenses[index];
    figure.querySelector(".sentence").textContent = lens.sentence;
    figure.querySelectorAll(".scale .end").forEach((end, i) => { end.textContent = lens.scale[i]; });
    if (lens.weights) {
      const has = lens.weights.some((block) => block.rows[pinned - block.row]?.trim());
      pin(pinned !== null && has ? pinned : lens.pinned);
    } else {
      shade(tokens.map((_, i) => (lens.values[i] == null ? undefined : lens.values[i] / lens.full)));
      pin(pinned !== null && lens.values[pinned] != null ? pinned : null);
    }
  }

  arcs.classList.add("arcs");
  arcs.setAttribute("aria-hidden", "true");
  figure.querySelector(".rows").append(arcs);
  if (choice) choice.parentElement.hidden = false;
  choice?.addEventListener("change", () => choose(choice.value));
  for (const group of figure.querySelectorAll(".tokens")) {
    const of = (event) => tokens.indexOf(event.target.closest(".token"));
    group.addEventListener("pointerover", (event) => of(event) >= 0 && show(of(event)));
    group.addEventListener("pointerleave", () => show(pinned));
    group.addEventListener("focusin", (event) => of(event) >= 0 && pin(of(event)));
    group.addEventListener("click", (event) => of(event) >= 0 && tokens[of(event)].focus());
    group.addEventListener("keydown", (event) => {
      const to = tokenReached(event.key, group, pinned ?? 0, tokens);
      if (to) { event.preventDefault(); to.focus(); }
      if (event.key === "Escape" && !lens.weights) pin(null);
    });
  }
  addEventListener("resize", () => show(pinned));
  choose(choice?.value ?? 0);
}

components.push([".strip", strip]);
