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
  playground.panel.showText();
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

// The start of the page: the models, the choice of one of them, the key, and the keys of the keyboard.
const playground = { models: [], panels: {}, panel: null };

async function loadModels() {
  const error = document.getElementById("start-error");
  error.textContent = "";
  try {
    playground.models = (await sendForJson("/v1/models")).data;
  } catch (problem) {
    if (problem.status === 401) askForKey(stored(KEY) ? "The server refused this key." : "");
    else error.textContent = problem.message;
    return;
  }
  document.getElementById("key-form").hidden = true;
  if (playground.models.length) showModels();
  else error.textContent = "The server has no models.";
}

function showModels() {
  const select = document.getElementById("model");
  select.replaceChildren(...playground.models.map((model) => make("option", model.id, { value: model.id })));
  const remembered = playground.models.find((model) => model.id === stored("model"));
  const hasTab = (model) => tabsOf(model).some((tab) => tab.name === hashName());
  const first = remembered ?? playground.models[0];
  select.value = (hasTab(first) ? first : playground.models.find(hasTab) ?? first).id; // an address names a tab, not a model
  select.disabled = false;
  chooseModel();
}

function chooseModel() {
  const model = playground.models.find((each) => each.id === document.getElementById("model").value);
  store("model", model.id);
  document.getElementById("facts").textContent = facts(model).join(" · ");
  for (const panel of Object.values(playground.panels)) panel.abandon();
  for (const { panel } of tabsOf(model)) playground.panels[panel].setModel(model);
  showTabs(model);
}

function facts(model) {
  return [
    model.task,
    model.layer,
    Number.isFinite(model.parameters) && counted(model.parameters, "parameter"),
    Number.isFinite(model.vocabulary_size) && `vocabulary of ${grouped(model.vocabulary_size)}${model.tokenizer ? ` (${model.tokenizer})` : ""}`,
    model.context && `reads up to ${counted(model.context, "token")}`,
  ].filter(Boolean);
}

// Show the field for the key. The key that was refused is forgotten.
function askForKey(message = "") {
  store(KEY, "");
  const form = document.getElementById("key-form");
  form.hidden = false;
  document.getElementById("start-error").textContent = message;
  document.getElementById("key").focus();
}

function keyListeners() {
  const form = document.getElementById("key-form"), field = document.getElementById("key");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    store(KEY, field.value.trim());
    field.value = "";
    form.hidden = true;
    loadModels();
  });
}

function keyboardListeners() {
  document.addEventListener("keydown", (event) => {
    const { panel } = playground;
    if (event.key === "Escape") {
      tokenBox.close();
      panel?.stop();
    }
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && panel && !panel.control && !event.target.closest("#key-form")) {
      event.preventDefault();
      panel.form.requestSubmit();
    }
  });
}

document.addEventListener("DOMContentLoaded", () => {
  themes();
  const panels = [new WritePanel(), new ScorePanel(), new AnswerPanel(), new ComparePanel(), new InspectPanel()];
  playground.panels = Object.fromEntries(panels.map((panel) => [panel.name, panel]));
  document.getElementById("model").addEventListener("change", chooseModel);
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address names the tab
    document.getElementById("content").focus();
  });
  tabListeners();
  keyListeners();
  keyboardListeners();
  loadModels();
});
