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
