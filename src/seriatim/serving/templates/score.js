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
