// A browser over items: two models, a filter, an order, a search, and more items on request.
function itemBrowser(box) {
  const MORE = 50;
  const chooser = (names) => { const select = make("select"); select.append(...names.map((name, i) => make("option", name, { value: i }))); return select; };
  const counted = (number) => number.toLocaleString("en");
  const written = (value, digits) => (value === null ? "∞" : value.toFixed(digits));
  const { kind, models, figure, digits, full, sign, items: all } = JSON.parse(box.querySelector("script.data").textContent);
  const [table] = box.getElementsByTagName("table"), [body] = table.tBodies, controls = box.querySelector(".controls"), legend = box.querySelector(".key");
  const two = models.length > 1, hasFigures = all.some(([, , , figures]) => figures.length), hasRight = kind !== "tokens";
  const texts = all.map(([text, truth, answers]) => [text, truth, ...(hasRight ? answers : [])].map((each) => [each].flat().join(kind === "tokens" ? "" : " ")).join("\n").toLowerCase());
  const first = chooser(models), second = chooser(models), filter = make("select"), order = make("select");
  const search = make("input", "", { type: "search", placeholder: "search" }), status = make("span", "", { className: "status" });
  const more = make("button", "", { type: "button", className: "more" }), details = make("div", "", { className: "details", hidden: true });
  for (const live of [status, details]) live.setAttribute("role", "status");
  search.setAttribute("aria-label", "Search the items");
  if (two) second.value = 1;
  let found = [], shown = 0;

  const chosen = () => (two && first.value !== second.value ? [Number(first.value), Number(second.value)] : [Number(first.value)]);
  const value = (i, model) => all[i][3][model] ?? Infinity;
  const gain = (i, a, b) => (value(i, a) === value(i, b) ? 0 : sign * (value(i, a) - value(i, b))); // by how much a is better
  const differ = (i, a, b) => JSON.stringify(all[i][2][a]) !== JSON.stringify(all[i][2][b]);

  // Filters and orders by name, of the models that are chosen.
  const filters = ([a, b]) => ({
    "all": () => true,
    ...(hasRight ? Object.fromEntries([a, b].filter((m) => m !== undefined).map((m) => [two ? `wrong by ${models[m]}` : "wrong", (i) => !all[i][4][m]])) : {}),
    ...(b === undefined ? {} : hasRight ? { "they differ": (i) => differ(i, a, b) } : { [`${models[a]} better`]: (i) => gain(i, a, b) > 0, [`${models[b]} better`]: (i) => gain(i, b, a) > 0 }),
  });
  const orders = ([a, b]) => (hasFigures ? {
    ...(b === undefined ? {} : {
      "largest difference": (i) => -Math.abs(gain(i, a, b)),
      [`${models[a]} better by most`]: (i) => -gain(i, a, b), [`${models[b]} better by most`]: (i) => -gain(i, b, a),
    }),
    ...Object.fromEntries([a, b].filter((m) => m !== undefined).map((m) => [two ? `worst of ${models[m]}` : "worst first", (i) => sign * value(i, m)])),
    "as in the data": (i) => i,
  } : { "as in the data": (i) => i });

  const mark = (right) => make("span", right ? "✓" : "✗", { className: "sign" });
  const labelled = (label, nodes, className = "") => {
    const cell = make("td", "", { className });
    if (label) cell.dataset.label = label;
    cell.append(...nodes);
    return cell;
  };
  const answerCell = ([, , answers, figures, right], m) => labelled(models[m], [
    ...(kind === "answers" ? [make("bdi", answers[m])] : []), mark(right[m]),
    ...(figures.length ? [make("small", written(figures[m], digits))] : []),
  ], right[m] ? "right" : "wrong");
  const word = ([text, truth, answers], at, chosen) => {
    const span = make("span", "", { className: "word" }), wrong = (m) => answers[m][at] !== truth[at];
    span.append(...chosen.map((m) => make("i", answers[m][at], { className: wrong(m) ? "wrong" : "" })), make("bdi", text[at]));
    span.append(make("i", chosen.some(wrong) ? truth[at] : "", { className: "gold" }));
    return span;
  };
  const bit = ([text, , answers], at, [a, b]) => {
    const [one, other] = [a, b].map((m) => (m === undefined ? 0 : answers[m][at] ?? Infinity));
    const shade = one === other ? 0 : Math.max(-1, Math.min(1, (one - other) / full));
    const span = make("span", text[at].replaceAll("\n", "↵").replaceAll("\t", "⇥"), { className: shade < 0 ? "bit first" : "bit" });
    span.style.setProperty("--shade", Math.abs(shade).toFixed(2));
    span.dataset.about = [a, b].filter((m) => m !== undefined).map((m) => `${models[m]}: ${written(answers[m][at], 2)} bits`).join(", ");
    return span;
  };
  const rowOf = (item, now) => {
    const row = make("tr"), [text, truth, , figures] = item, positions = [...text].map((_, at) => at);
    if (kind === "answers") row.append(labelled("", [make("bdi", text)]), labelled("right answer", [make("bdi", truth)]), ...now.map((m) => answerCell(item, m)));
    if (kind === "tags") row.append(labelled("", positions.flatMap((at) => [word(item, at, now), " "]), "sentence"), ...now.map((m) => answerCell(item, m)));
    if (kind === "tokens") {
      const bits = positions.map((at) => bit(item, at, now));
      oneTabStop(bits);
      row.append(labelled("", bits, "bits"), ...now.map((m) => labelled(models[m], [written(figures[m], digits)], "number")));
      const difference = now.length > 1 ? figures[now[1]] - figures[now[0]] : NaN;
      if (now.length > 1) row.append(labelled("difference", [now.some((m) => figures[m] === null) ? "" : `${difference > 0 ? "+" : ""}${difference.toFixed(digits)}`], "number"));
    }
    if (hasRight || now.length) row.firstChild.dir = "auto";
    return row;
  };

  const grow = () => {
    const now = chosen(), added = found.slice(shown, shown + (shown ? MORE : kind === "tags" ? 3 : 10)).map((i) => rowOf(all[i], now));
    body.append(...added);
    shown += added.length;
    more.hidden = shown >= found.length;
    more.textContent = `Show ${Math.min(MORE, found.length - shown)} more`;
    status.textContent = `${found.length < all.length ? `${counted(found.length)} of ` : ""}${counted(all.length)} items${shown < found.length ? `, ${counted(shown)} shown` : ""}`;
    return added[0];
  };
  const update = () => {
    const now = chosen(), kept = Object.values(filters(now))[filter.value], key = Object.values(orders(now))[order.value], words = search.value.toLowerCase();
    found = all.map((_, i) => i).filter((i) => kept(i) && texts[i].includes(words));
    const keys = new Map(found.map((i) => [i, key(i)]));
    found.sort((i, j) => (keys.get(i) === keys.get(j) ? i - j : keys.get(i) - keys.get(j)));
    const headings = ["text", ...(kind === "answers" ? ["right answer"] : []), ...now.map((m) => models[m]), ...(kind === "tokens" && now.length > 1 ? ["difference"] : [])];
    [legend.querySelector(".one"), legend.querySelector(".other")].forEach((element, i) => { if (element) element.textContent = models[now[i] ?? now[0]]; });
    table.tHead.rows[0].replaceChildren(...headings.map((name, at) => {
      const heading = make("th", name, { scope: "col", className: kind === "tokens" && at ? "number" : "" });
      if (figure && now.some((m) => models[m] === name)) heading.append(make("small", figure));
      return heading;
    }));
    body.replaceChildren();
    shown = 0;
    grow();
  };
  const choose = () => { // of other models, filters have other names and counts
    const now = chosen();
    for (const [select, names] of [[filter, Object.entries(filters(now)).map(([name, test]) => `${name} (${counted(all.filter((_, i) => test(i)).length)})`)], [order, Object.keys(orders(now))]]) {
      const before = Math.max(0, select.selectedIndex);
      select.replaceChildren(...chooser(names).children);
      select.selectedIndex = Math.min(before, names.length - 1);
    }
    update();
  };

  const close = () => { details.hidden = true; };
  const tell = (event) => {
    const at = event.target.closest?.(".bit");
    if (!at) return;
    details.textContent = at.dataset.about;
    placed(details, at.getClientRects()[0]);
  };
  for (const name of ["pointerover", "focusin"]) body.addEventListener(name, tell);
  for (const name of ["pointerleave", "focusout"]) body.addEventListener(name, close);
  for (const select of two ? [first, second] : []) select.addEventListener("change", choose);
  for (const [control, event] of [[filter, "change"], [order, "change"], [search, "input"]]) control.addEventListener(event, update);
  more.addEventListener("click", () => { const row = grow(); row.tabIndex = -1; row.focus({ preventScroll: true }); });

  const named = (name, control) => { const label = make("label", `${name} `); label.append(control); return label; };
  controls.append(...(two ? [named("compare", first), named("with", second)] : []), named("show", filter), named("order", order), search, status);
  controls.hidden = false;
  box.append(more);
  document.body.append(details);
  choose();
}

components.push([".items", itemBrowser]);
