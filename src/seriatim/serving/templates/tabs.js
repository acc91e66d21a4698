// The tabs: which ones the model has, the one that is chosen, and the panel below them.
const tabs = { list: [], chosen: null };

// The tabs of a model, as { name, panel }. The name of an answer's tab is that of its endpoint.
function tabsOf(model) {
  const has = (endpoint) => model.endpoints.includes(endpoint);
  const answer = answerEndpoint(model);
  return [
    ...(has("/v1/completions") ? [{ name: "write", panel: "write" }] : []),
    ...(answer ? [{ name: lastPart(answer), panel: "answer" }] : []),
    ...(has("/v1/score") ? [{ name: "score", panel: "score" }] : []),
    ...(comparable(model).length ? [{ name: "compare", panel: "compare" }] : []),
    ...(has("/v1/inspect") ? [{ name: "inspect", panel: "inspect" }] : []),
  ];
}

function hashName() {
  try { return decodeURIComponent(location.hash.slice(1)); } catch { return ""; }
}

function showTabs(model) {
  const list = document.getElementById("tabs");
  const hadFocus = list.contains(document.activeElement);
  tabs.list = tabsOf(model).map((tab) => ({ ...tab, button: tabButton(tab) }));
  list.replaceChildren(...tabs.list.map((tab) => tab.button));
  const wanted = [hashName(), tabs.chosen].map((name) => tabs.list.find((tab) => tab.name === name)).find(Boolean);
  chooseTab(wanted ?? tabs.list[0]);
  if (hadFocus) list.querySelector("[aria-selected=true]").focus();
}

function tabButton({ name, panel }) {
  const button = make("button", capital(name), { type: "button", id: `tab-${name}` });
  button.setAttribute("role", "tab");
  button.setAttribute("aria-controls", panel);
  button.addEventListener("click", () => chooseTab(tabs.list.find((tab) => tab.name === name)));
  return button;
}

function chooseTab(chosen) {
  for (const panel of Object.values(playground.panels)) panel.section.hidden = panel.name !== chosen.panel;
  for (const tab of tabs.list) {
    tab.button.setAttribute("aria-selected", tab === chosen);
    tab.button.tabIndex = tab === chosen ? 0 : -1;
  }
  const { section } = playground.panels[chosen.panel];
  section.setAttribute("role", "tabpanel");
  section.setAttribute("aria-labelledby", chosen.button.id);
  tokenBox.close();
  tabs.chosen = chosen.name;
  playground.panel = playground.panels[chosen.panel];
  if (hashName() !== chosen.name) history.replaceState(null, "", `#${encodeURIComponent(chosen.name)}`);
}

function tabListeners() {
  document.getElementById("tabs").addEventListener("keydown", (event) => {
    const now = tabs.list.findIndex((tab) => tab.button === event.target);
    const last = tabs.list.length - 1;
    const to = { ArrowRight: now === last ? 0 : now + 1, ArrowLeft: now ? now - 1 : last, Home: 0, End: last }[event.key];
    if (now < 0 || to === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    chooseTab(tabs.list[to]);
    tabs.list[to].button.focus();
  });
  addEventListener("hashchange", () => {
    const tab = tabs.list.find((each) => each.name === hashName());
    if (tab) chooseTab(tab);
  });
}
