// The settings of an endpoint as fields, from the JSON Schema of the model. An empty field is left out of requests.
const PRESET = { alignments: true }; // the page shows alignments, so it asks for them
const EXAMPLES = {
  "/v1/classify": "Which river flows through Paris?\nHow many people live there?",
  "/v1/fill": "She opened the [MASK] and went out.",
  "/v1/tag": "Maria moved to Berlin in May .",
  "/v1/translate": "A man is riding a horse.",
};
const exampleFor = (model) => EXAMPLES[answerEndpoint(model)] ?? "The story begins with a man who";
const HINTS = { "/v1/fill": "A text with [MASK] where a word is missing.", "/v1/tag": "Words, separated by spaces.", "/v1/translate": "The text to translate." };

// The kind of a setting and its limits; a setting that may be null has the kind of its other values.
function settingKind(schema) {
  const choices = schema.anyOf ?? [schema];
  const found = choices.find((each) => each.enum || ["integer", "number", "boolean", "string"].includes(each.type));
  return found ? { ...schema, ...found } : null;
}

// Show one field for each setting; the element is hidden if there is none.
function showSettings(element, schema) {
  const fields = [];
  for (const [name, setting] of Object.entries(schema?.properties ?? {})) {
    const kind = settingKind(setting);
    if (kind) fields.push(settingField(name, kind, setting));
  }
  element.querySelector(".fields").replaceChildren(...fields);
  element.hidden = fields.length === 0;
}

function settingField(name, kind, schema) {
  const id = `setting-${name}`;
  const label = make("label", titled(name), { htmlFor: id });
  const input = settingInput(kind, schema);
  Object.assign(input, { id, name: `setting:${name}` });
  input.dataset.kind = kind.enum ? "string" : kind.type;
  const field = make("p", "", { className: kind.type === "boolean" ? "field check" : "field" });
  field.append(...(kind.type === "boolean" ? [input, label] : [label, input]));
  if (schema.description) field.append(make("small", schema.description));
  if (kind.type === "boolean") {
    input.dataset.default = schema.default === true;
    input.checked = PRESET[name] ?? schema.default === true;
  }
  return field;
}

function settingInput(kind, schema) {
  if (kind.enum) {
    const input = make("select");
    input.append(make("option", "default", { value: "" }), ...kind.enum.map((each) => make("option", String(each), { value: each })));
    return input;
  }
  const input = make("input", "", { type: { boolean: "checkbox", string: "text" }[kind.type] ?? "number" });
  if (input.type === "number") {
    input.step = kind.type === "integer" ? 1 : "any";
    if (kind.minimum !== undefined) input.min = kind.minimum;
    if (kind.maximum !== undefined) input.max = kind.maximum;
  }
  if (input.type !== "checkbox") input.placeholder = String(schema.default ?? "default");
  return input;
}

// The settings that differ from their defaults, for a request.
function chosenSettings(element) {
  const settings = {};
  for (const input of element.querySelectorAll("[data-kind]")) {
    const name = input.name.slice("setting:".length);
    if (input.type === "checkbox") {
      if (String(input.checked) !== input.dataset.default) settings[name] = input.checked;
    } else if (input.value !== "") {
      settings[name] = input.dataset.kind === "string" ? input.value : Number(input.value);
    }
  }
  return settings;
}

// What all panels share: a form that starts a request, a button that stops it, what happens in words, and the request
// as a command. A panel gives `requests()`, a list of [path, body], and `respond(signal)`, which shows the answer.
const wide = matchMedia("(min-width: 56rem)");
const TICK = 250; // milliseconds between two updates of the time that a request takes

class Panel {
  constructor(name, verb) {
    this.section = document.getElementById(name);
    this.form = this.section.querySelector("form");
    this.form.append(document.getElementById("panel-parts").content.cloneNode(true));
    const part = (selector) => this.form.querySelector(selector);
    Object.assign(this, { go: part(".go"), copy: part(".curl-copy"), said: part("[role=status]"), progress: part(".progress") });
    Object.assign(this, { busy: part("progress"), error: part(".error"), output: part(".output"), command: part("details.curl"), text: part("textarea") });
    this.name = name;
    this.verb = verb;
    this.control = null;
    this.model = null;
    this.go.textContent = verb;
    this.listen();
  }

  listen() {
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.control) this.stop();
      else this.start();
    });
    this.form.addEventListener("input", () => this.changed());
    // Beside the text there is room for the settings; below it they are folded.
    const folded = this.form.querySelector("details.settings");
    if (folded) {
      folded.open = wide.matches;
      wide.addEventListener("change", () => { folded.open = wide.matches; });
    }
    const example = this.form.querySelector(".example");
    example.addEventListener("click", () => {
      this.text.value = exampleFor(this.model);
      this.changed();
      this.text.focus();
    });
    this.copy.addEventListener("click", () => this.copyCommand());
    this.command.addEventListener("toggle", () => this.tellCommand());
  }

  // The name under which the fields are remembered.
  get memory() { return `form-${this.name}`; }

  // Another model was chosen: what is shown was not written by it.
  setModel(model) {
    this.abandon();
    this.model = model;
    this.clear();
    setFieldValues(this.form, storedValues(this.memory));
    this.showText();
  }

  // The text is the same in all tabs of models that answer alike.
  get textMemory() { return `text-${answerEndpoint(this.model) ?? "language"}`; }

  showText() {
    this.text.value = stored(this.textMemory) ?? "";
    this.tellCommand();
  }

  changed() {
    store(this.memory, JSON.stringify(fieldValues(this.form)));
    store(this.textMemory, this.text.value);
    this.tellCommand();
  }

  clear() {
    tokenBox.close();
    this.output.replaceChildren();
    this.say("");
    this.fail(null);
  }

  say(text, progress = "") {
    this.said.textContent = text;
    this.progress.textContent = progress;
  }

  fail(error) {
    this.error.textContent = error?.message ?? "";
    if (error?.status === 401) askForKey();
  }

  stop() { this.control?.abort(); }

  // Stop without a word: what would be shown is not wanted any more.
  abandon() {
    this.stop();
    this.control = null;
    this.rest();
  }

  rest() {
    clearInterval(this.clock);
    this.busy.hidden = true;
    this.go.textContent = this.verb;
  }

  async start() {
    if (this.needsText && !this.text.value.trim()) {
      this.clear();
      this.say("Type a text first.");
      this.text.focus();
      return;
    }
    const control = new AbortController(), started = performance.now();
    this.control = control;
    this.begin();
    this.say(this.waiting);
    this.busy.hidden = false;
    this.clock = setInterval(() => this.tick((performance.now() - started) / 1000), TICK);
    this.go.textContent = "Stop";
    let problem = null;
    try {
      await this.respond(control.signal);
    } catch (error) {
      problem = error;
    }
    if (this.control !== control) return; // abandoned
    this.control = null;
    this.rest();
    this.end(problem, control.signal.aborted, (performance.now() - started) / 1000);
  }

  end(problem, isStopped, seconds) {
    if (isStopped) this.say(this.stopped(seconds));
    else this.say(problem ? "" : this.summary(seconds));
    if (problem && !isStopped) this.fail(problem instanceof ServerError ? problem : new ServerError(0, `The answer cannot be shown: ${problem.message}`));
  }

  get needsText() { return true; }
  get waiting() { return "Waiting for the model…"; }
  begin() { this.clear(); }
  tick(seconds) { this.progress.textContent = `${Math.floor(seconds)}\u00a0s`; }
  summary(seconds) { return `Answered in ${decimals(seconds, 2)}\u00a0s.`; }
  stopped() { return "Stopped."; }

  async ask(request, signal) {
    const [path, body] = request;
    return sendForJson(path, { method: "POST", body, signal });
  }

  get commands() { return this.requests().map(([path, body]) => curlCommand(path, body)).join("\n\n"); }

  tellCommand() {
    if (this.command.open && this.model) this.command.querySelector("code").textContent = this.commands;
  }

  // Without permission to copy, as on a page that was not sent over HTTPS, the command is selected instead.
  async copyCommand() {
    const { commands } = this;
    try {
      await navigator.clipboard.writeText(commands);
      this.say("The command was copied.");
    } catch {
      this.command.open = true;
      this.tellCommand();
      getSelection().selectAllChildren(this.command.querySelector("code"));
      this.say("The browser does not allow copying. The command is selected below.");
    }
  }
}

// Text that a language model writes after a prompt, token by token.
const FINISHES = { length: "max tokens was reached", stop: "the text ended" };
const OPTIONAL_NUMBERS = ["max_tokens", "temperature", "top_p", "seed"];
const ALTERNATIVES = 5;

// "\n" and "\t" in a field of one line stand for a line end and a tab, "\\" for a backslash.
const unescaped = (text) => text.replace(/\\([nt\\])/g, (_, sign) => ({ n: "\n", t: "\t", "\\": "\\" })[sign]);

class WritePanel extends Panel {
  constructor() {
    super("write", "Generate");
    this.sessionChoice = document.getElementById("session-choice");
    this.session = document.getElementById("session");
    document.getElementById("new-session").addEventListener("click", () => this.endSession());
    this.session.addEventListener("change", () => this.endSession());
    this.other = this.form.elements.other;
    this.sessionName = null;
    this.hasSession = false; // whether the server knows the session
    this.writings = null;
  }

  setModel(model) {
    this.forgetSession();
    const others = playground.models.filter((each) => each.id !== model.id && each.endpoints.includes("/v1/completions"));
    this.other.replaceChildren(make("option", "none", { value: "" }), ...others.map((each) => make("option", each.id, { value: each.id })));
    this.other.parentElement.hidden = others.length === 0;
    super.setModel(model);
    if (!this.other.value) this.other.selectedIndex = 0; // the remembered model is not served any more
    this.sessionChoice.hidden = !model.sessions;
    const tokens = this.form.elements.max_tokens;
    tokens.max = model.max_tokens ?? "";
    if (model.max_tokens && Number(tokens.value) > model.max_tokens) tokens.value = model.max_tokens;
  }

  get inSession() { return this.model.sessions && this.session.checked; }

  get needsText() { return false; }

  // A session belongs to one model.
  get models() { return [this.model, ...(this.inSession ? [] : playground.models.filter((each) => each.id === this.other.value))]; }

  requests() { return this.models.map((model) => this.request(model)); }

  request(model) {
    const values = fieldValues(this.form);
    const body = { model: model.id, prompt: values.prompt };
    for (const name of OPTIONAL_NUMBERS) if (values[name] !== "") body[name] = Number(values[name]);
    if (values.stop) body.stop = unescaped(values.stop);
    if (this.inSession) body.session = this.sessionName ??= `playground-${crypto.getRandomValues(new Uint32Array(1))[0].toString(36)}`;
    return ["/v1/completions", { ...body, logprobs: ALTERNATIVES, stream: true }];
  }

  // In a session the new text follows the one that is shown.
  begin() {
    const { models } = this;
    if (!this.inSession || !this.writings) {
      this.clear();
      this.writings = models.map((model) => ({ texts: new TokenText(`Text of ${model.id}`, model.vocabulary_size) }));
      const elements = this.writings.map(({ texts }) => [texts.element]);
      this.output.append(...(models.length > 1 ? [beside(models, elements)] : elements[0]));
    }
    this.fail(null);
    models.forEach(({ id }, i) => Object.assign(this.writings[i], { name: models.length > 1 ? `${id}: ` : "", count: 0, finish: null, seconds: null }));
  }

  clear() {
    super.clear();
    this.writings = null;
  }

  // Where one model fails, the other still writes to its end.
  async respond(signal) {
    const requests = this.requests();
    const ended = await Promise.allSettled(this.writings.map((writing, i) => this.write(requests[i], writing, signal)));
    const failed = ended.find((each) => each.status === "rejected");
    if (failed) throw failed.reason;
  }

  async write([path, body], writing, signal) {
    const { texts } = writing;
    const joiner = new TokenJoiner(), started = performance.now();
    let isRead = false;
    try {
      for await (const { choices: [choice] } of streamedObjects(path, body, signal)) {
        if (!isRead) this.showPrompt(body.prompt, texts);
        isRead = true;
        if (!choice) continue; // the last object may hold the usage alone
        const tokens = streamedTokens(choice);
        writing.count += tokens.length;
        writing.finish = choice.finish_reason ?? writing.finish;
        texts.add(joiner.add(tokens, choice.text));
      }
    } finally {
      writing.seconds = (performance.now() - started) / 1000;
      texts.add(joiner.rest());
      texts.flush();
    }
  }

  // The prompt is shown when the model has read it. In a session it must not be sent again.
  showPrompt(prompt, texts) {
    texts.addPlain(prompt);
    if (!this.inSession) return;
    this.hasSession = true;
    this.text.value = "";
    this.changed();
  }

  tick(seconds) {
    if (this.writings.every(({ count }) => count === 0)) super.tick(seconds);
    else this.say("Writing…", this.speeds(seconds).join(" · "));
  }

  speeds(now) {
    return this.writings.map(({ name, count, seconds }) => {
      const spent = seconds ?? now;
      return `${name}${counted(count, "token")} in ${decimals(spent, 2)}\u00a0s, ${decimals(count / spent, 0)}\u00a0tokens/s`;
    });
  }

  summary(seconds) {
    const ends = this.writings.map(({ finish }) => FINISHES[finish] ?? finish ?? "no reason for the end was given");
    return `${this.speeds(seconds).map((speed, i) => `${speed}; ${ends[i]}`).join(" · ")}.`;
  }

  stopped(seconds) { return `Stopped after ${this.speeds(seconds).join(" · ")}.`; }

  async endSession() {
    this.abandon();
    const name = this.forgetSession();
    this.clear();
    this.tellCommand();
    if (!name) return;
    const path = `/v1/sessions/${name}?model=${encodeURIComponent(this.model.id)}`;
    const remove = () => send(path, { method: "DELETE" });
    // A text that was just stopped may still use the session; the server also forgets it later by itself.
    await remove().catch(() => setTimeout(() => remove().catch(() => {}), 2000));
  }

  forgetSession() {
    const name = this.hasSession ? this.sessionName : null;
    Object.assign(this, { sessionName: null, hasSession: false });
    return name;
  }
}

// The surprisal of each token of a text, and its sum.
class ScorePanel extends Panel {
  constructor() { super("score", "Score"); }

  requests() { return [scoreRequest(this.model, this.text.value)]; }

  async respond(signal) {
    const { data: [score] } = await this.ask(this.requests()[0], signal);
    this.output.append(totals(score), scoredText(score, this.model, "Text"));
  }
}

const scoreRequest = (model, input) => ["/v1/score", { model: model.id, input, top_logprobs: ALTERNATIVES }];

const totalBits = (score) => -score.log_probability * BITS;

function totals(score) {
  return figures([
    ["Surprisal", decimals(totalBits(score), 1), "bits"],
    ["Per byte", decimals(score.bits_per_byte, 3), "bits"],
    ["Tokens", grouped(score.tokens.length)],
    ["Bytes", grouped(score.bytes)],
  ]);
}

function scoredText(score, model, label) {
  const texts = new TokenText(label, model.vocabulary_size);
  texts.add(scoredTokens(score));
  texts.flush();
  return texts.element;
}

// The answer of a model to a text: a label, tags, a translation, or whatever its endpoint returns.
class AnswerPanel extends Panel {
  constructor() {
    super("answer", "Answer");
    this.settings = document.getElementById("answer-settings");
  }

  // The fields of each endpoint are remembered separately: a sentence to tag is no text to fill.
  get memory() { return `form-${this.endpoint ?? this.name}`; }

  setModel(model) {
    this.endpoint = answerEndpoint(model);
    if (!this.endpoint) return;
    this.verb = capital(lastPart(this.endpoint));
    this.go.textContent = this.verb;
    this.text.placeholder = `${HINTS[this.endpoint] ?? "Texts."} Each line is one input.`;
    showSettings(this.settings, model.settings);
    super.setModel(model);
  }

  requests() { return [answerRequest(this.model, this.text.value, chosenSettings(this.settings))]; }

  async respond(signal) {
    const { data } = await this.ask(this.requests()[0], signal);
    const inputs = inputsOf(this.text.value);
    data.forEach((answer, i) => this.output.append(answered(inputs, i, answerParts(answer, { input: inputs[i] }))));
    this.output.append(rawAnswer(data.length > 1 ? data : data[0]));
  }
}

// Each line is an input, as in the files of `seriatim predict`.
const inputsOf = (text) => text.split("\n").filter((line) => line.trim());

// The answer to one of some inputs, below the input if there are several.
function answered(inputs, i, parts) {
  const element = make("article");
  if (inputs.length > 1) element.append(make("h2", shownText(inputs[i]), { dir: "auto" }));
  element.append(...parts);
  return element;
}

// Endpoints that have panels of their own, or none.
const OTHER_ENDPOINTS = new Set(["/v1/completions", "/v1/score", "/v1/tokenize", "/v1/inspect"]);

const answerEndpoint = (model) => model.endpoints.find((each) => !OTHER_ENDPOINTS.has(each));
const lastPart = (path) => path.split("/").at(-1);

function answerRequest(model, text, settings = {}) {
  const inputs = inputsOf(text);
  return [answerEndpoint(model), { model: model.id, input: inputs.length > 1 ? inputs : inputs[0] ?? "", ...settings }];
}

// The page of `seriatim inspect` for a text, in a frame that has no access to this page.
class InspectPanel extends Panel {
  constructor() { super("inspect", "Inspect"); }

  get waiting() { return "Writing the page…"; }

  requests() { return [["/v1/inspect", { model: this.model.id, input: this.text.value }]]; }

  async respond(signal) {
    const { url } = await this.ask(this.requests()[0], signal);
    const address = new URL(url, location.href);
    if (address.origin !== location.origin) throw new ServerError(0, "The page is on another server, and was not opened.");
    const frame = make("iframe", "", { title: `Inspection of ${this.model.id}`, src: address.href });
    frame.setAttribute("sandbox", "allow-scripts");
    const link = make("a", "Open the page in a new tab", { href: address.href, target: "_blank", rel: "noopener noreferrer" });
    const line = make("p");
    line.append(link);
    this.output.append(line, frame);
  }
}

// Two models on one text, side by side: the surprisals of language models, the answers of others.
class ComparePanel extends Panel {
  constructor() {
    super("compare", "Compare");
    this.other = document.getElementById("other-model");
  }

  setModel(model) {
    const others = comparable(model);
    this.other.replaceChildren(...others.map((each) => make("option", each.id, { value: each.id })));
    const note = commonEndpoint(model) === "/v1/score" ? "The surprisals of both are comparable in bits per byte." : "Both answer with the default settings.";
    document.getElementById("compare-note").textContent = note;
    super.setModel(model);
    if (!this.other.value) this.other.selectedIndex = 0; // the remembered model is not one of them
  }

  get memory() { return `form-compare-${commonEndpoint(this.model)}`; }

  get models() { return [this.model, comparable(this.model).find((each) => each.id === this.other.value)]; }

  requests() {
    const isScore = commonEndpoint(this.model) === "/v1/score";
    const request = isScore ? scoreRequest : answerRequest;
    return this.models.filter(Boolean).map((model) => request(model, this.text.value));
  }

  async respond(signal) {
    const requests = this.requests(), { models } = this;
    const answers = await Promise.all(requests.map((each) => this.ask(each, signal)));
    if (commonEndpoint(this.model) === "/v1/score") {
      this.output.append(...scoresBeside(answers.map((answer) => answer.data[0]), models));
      return;
    }
    const inputs = inputsOf(this.text.value);
    inputs.forEach((input, i) => {
      const pair = answers.map((answer) => answer.data[i]);
      this.output.append(answered(inputs, i, answersBeside(pair, models, input)));
    });
  }
}

const commonEndpoint = (model) => (model.endpoints.includes("/v1/score") ? "/v1/score" : answerEndpoint(model));
const comparable = (model) => playground.models.filter((each) => each.id !== model.id && commonEndpoint(each) === commonEndpoint(model) && commonEndpoint(each));

function beside(models, contents) {
  const element = make("div", "", { className: "samples beside" });
  models.forEach((model, i) => {
    const article = make("article");
    article.append(make("h2", model.id), ...contents[i]);
    element.append(article);
  });
  return element;
}

function scoresBeside(scores, models) {
  const difference = scores[0].bits_per_byte - scores[1].bits_per_byte;
  const [better, worse] = difference <= 0 ? models : [models[1], models[0]];
  const sentence = make("p", "", { className: "finding" });
  if (decimals(Math.abs(difference), 3) === "0.000") sentence.append("Both models need the same number of bits.");
  else sentence.append(named(better), ` needs ${decimals(Math.abs(difference), 3)} bits per byte less than `, named(worse), ".");
  const contents = scores.map((score, i) => [totals(score), scoredText(score, models[i], `Text, scored by ${models[i].id}`)]);
  return [sentence, beside(models, contents)];
}

const named = (model) => make("strong", model.id);

function answersBeside(answers, models, input) {
  const contents = answers.map((answer, i) => answerParts(answer, { input, other: answers[1 - i] }));
  return [make("p", agreement(answers), { className: "finding" }), beside(models, contents)];
}

function agreement([first, second]) {
  if (Array.isArray(first.tags) && Array.isArray(second.tags)) {
    const places = Math.max(first.tags.length, second.tags.length);
    const differing = Array.from({ length: places }, (_, i) => first.tags[i] !== second.tags[i]).filter(Boolean).length;
    if (differing) return `The tags of ${differing} of ${counted(places, "word")} differ.`;
  }
  return first.text === second.text ? "Both answers are the same." : "The answers differ.";
}
