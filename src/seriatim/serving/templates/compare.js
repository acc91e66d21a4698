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
    const data = answers.map((answer) => answer.data[0]);
    const isScore = commonEndpoint(this.model) === "/v1/score";
    const shown = isScore ? scoresBeside(data, models) : answersBeside(data, models, this.text.value);
    this.output.append(...shown);
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
