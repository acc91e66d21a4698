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
