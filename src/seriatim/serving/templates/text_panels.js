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
    this.text.value = "";
    this.text.placeholder = HINTS[this.endpoint] ?? "";
    showSettings(this.settings, model.settings);
    super.setModel(model);
  }

  requests() { return [answerRequest(this.model, this.text.value, chosenSettings(this.settings))]; }

  async respond(signal) {
    const request = this.requests()[0];
    const { data: [answer] } = await this.ask(request, signal);
    this.output.append(...answerParts(answer, { input: request[1].input }), rawAnswer(answer));
  }
}

// Endpoints that have panels of their own, or none.
const OTHER_ENDPOINTS = new Set(["/v1/completions", "/v1/score", "/v1/tokenize", "/v1/inspect"]);

const answerEndpoint = (model) => model.endpoints.find((each) => !OTHER_ENDPOINTS.has(each));
const lastPart = (path) => path.split("/").at(-1);
const answerRequest = (model, input, settings = {}) => [answerEndpoint(model), { model: model.id, input, ...settings }];

// The page of `seriatim inspect` for a text, in a frame that has no access to this page.
class InspectPanel extends Panel {
  constructor() { super("inspect", "Inspect"); }

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
