// Tokens as the page shows them: { text, bits, alternatives: [[text, probability], …], count, symbol }. A character of
// several tokens, such as the bytes of an emoji, is one of them: its bits are their sum.
const REPLACEMENT = "\ufffd";
const isPart = (token) => token.name.includes(REPLACEMENT);

function shown(tokens, text) {
  return {
    text,
    name: tokens.length === 1 ? tokens[0].name : text,
    bits: tokens.reduce((sum, token) => sum + token.bits, 0),
    alternatives: tokens[0].alternatives,
    count: tokens.length,
    symbol: tokens.length === 1 && isSymbol(tokens[0].name) && text === tokens[0].name,
  };
}

const bitsOf = (logprob) => (logprob === null || logprob === undefined ? Infinity : Math.max(0, -logprob * BITS));
const byProbability = (a, b) => b[1] - a[1];

// The tokens of an answer of /v1/score. Its offsets count characters, not the units of JavaScript's strings.
function scoredTokens(score) {
  const characters = Array.from(score.text);
  const result = [];
  let group = [], start = 0, end = 0;
  const close = () => {
    if (group.length) result.push(shown(group, characters.slice(start, end).join("") || group[0].name));
    group = [];
  };
  for (const each of score.tokens) {
    const alternatives = (each.top ?? []).map((top) => [top.text, Math.exp(top.logprob)]).sort(byProbability);
    const token = { name: each.text, bits: bitsOf(each.logprob), alternatives };
    const continues = group.length && isPart(token) && isPart(group[0]) && (each.start < end || end === start);
    if (!continues) {
      close();
      [start, end] = [each.start, each.end];
    }
    group.push(token);
    end = Math.max(end, each.end);
  }
  close();
  return result;
}

// The tokens of one choice of a stream of completions, without their places in the text.
function streamedTokens(choice) {
  const { tokens = [], token_logprobs: values = [], top_logprobs: tops = [] } = choice.logprobs ?? {};
  return tokens.map((name, i) => ({
    name,
    bits: bitsOf(values[i]),
    alternatives: Object.entries(tops?.[i] ?? {}).map(([text, logprob]) => [text, Math.exp(logprob)]).sort(byProbability),
  }));
}

// Joins the pieces of a streamed text with its tokens. A piece may come after its first tokens, when they are parts of
// a character, or when the server holds text back that could begin the stop string.
class TokenJoiner {
  constructor() {
    this.waiting = [];
    this.text = "";
  }

  // Return the tokens that are complete after a piece.
  add(tokens, piece) {
    this.waiting.push(...tokens);
    this.text += piece;
    const ready = [];
    for (let next = this.next(); next; next = this.next()) ready.push(next);
    return ready;
  }

  next() {
    const [token] = this.waiting;
    if (!this.text) return null;
    if (!token) return this.takePlain();
    if (!isPart(token)) {
      if (!this.text.startsWith(token.name) && token.name.startsWith(this.text)) return null; // more of it is coming
      return this.take(1, this.text.startsWith(token.name) ? token.name.length : this.lengthOfOther(token));
    }
    const parts = this.waiting.findIndex((each) => !isPart(each));
    if (parts < 0) return this.take(this.waiting.length, this.text.length);
    const end = this.text.indexOf(this.waiting[parts].name);
    if (end === 0) return this.take(parts, 0); // bytes that are no character, and leave no text
    return this.take(parts, end < 0 ? this.text.length : end);
  }

  // A text that begins otherwise than its first token, as where a tokenizer drops the first space of a text.
  lengthOfOther(token) {
    const bare = token.name.trimStart();
    return bare && this.text.startsWith(bare) ? bare.length : Math.min(token.name.length, this.text.length);
  }

  take(tokens, length) {
    const text = this.text.slice(0, length);
    this.text = this.text.slice(length);
    const group = this.waiting.splice(0, tokens);
    return shown(group, text || group.map((each) => each.name).join(""));
  }

  // Text for which the server has given no tokens.
  takePlain() {
    const { text } = this;
    this.text = "";
    return { text, name: text, bits: 0, alternatives: [], count: 0, symbol: false };
  }

  // What is left at the end: the rest of the text, or the token that ends it. Other tokens without text belong to a stop string.
  rest() {
    const [first] = this.waiting;
    if (this.text && first) return [this.take(this.waiting.length, this.text.length)];
    return first && isSymbol(first.name) ? [shown([first], first.name)] : [];
  }
}
