// A text of tokens: the tab key reaches one token, arrow keys move from it, and a box shows its alternatives.
function surprisal(group) {
  const tokens = [...group.children];
  const box = document.getElementById(group.dataset.for);
  const data = JSON.parse(document.querySelector(`script.alternatives[data-for="${group.dataset.for}"]`).textContent);
  let held = null;

  const close = () => { box.hidden = true; held?.classList.remove("held"); held = null; };
  const show = (token) => {
    close();
    held = token;
    token.classList.add("held");
    const list = document.createElement("dl");
    for (const [text, probability] of data[tokens.indexOf(token)]) {
      list.append(make("dt", text.replaceAll("\n", "↵").replaceAll(" ", "␣")), make("dd", percent(probability)));
    }
    const note = token.dataset.note ?? `${token.dataset.bits} bits: ${percent(2 ** -token.dataset.bits)}`;
    box.replaceChildren(make("div", note), ...(list.children.length ? [make("div", group.dataset.list), list] : []));
    placed(box, token.getClientRects()[0] ?? token.getBoundingClientRect());
  };
  const go = (token) => {
    for (const each of tokens) each.tabIndex = each === token ? 0 : -1;
    token.focus();
  };
  const of = (event) => event.target.closest(".token");

  group.addEventListener("focusin", (event) => of(event) && show(of(event)));
  group.addEventListener("focusout", close);
  group.addEventListener("pointerover", (event) => of(event) && show(of(event)));
  group.addEventListener("pointerleave", () => (group.contains(document.activeElement) ? show(document.activeElement) : close()));
  group.addEventListener("click", (event) => of(event) && go(of(event)));
  group.addEventListener("keydown", (event) => {
    const to = tokenReached(event.key, group, tokens.indexOf(of(event)), tokens);
    if (to) { event.preventDefault(); go(to); }
    if (event.key === "Escape") close();
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); show(of(event)); }
  });
}

components.push([".surprisal .tokens", surprisal]);
