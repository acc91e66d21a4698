// An answer as the fields in it say: probabilities of labels, words with tags, gaps with their alternatives, an
// alignment, several answers. So an endpoint that is new to the page is shown, too.
const KNOWN_FIELDS = new Set(["index", "object", "seconds", "text", "probabilities", "words", "tags", "masks", "n_best", "source_tokens", "target_tokens", "alignment"]);
const MOST_BARS = 12;
const tagColours = new Map(); // a tag keeps its colour as long as the page is open

// The elements that show an answer. `other` is the answer of the model that it is compared with.
function answerParts(answer, { input = "", other = null } = {}) {
  const parts = [];
  if (Array.isArray(answer.tags) && Array.isArray(answer.words)) parts.push(taggedWords(answer, other));
  else if (Array.isArray(answer.masks)) parts.push(filledText(answer, input, other), ...gapLists(answer.masks));
  else if (isTable(answer.probabilities)) parts.push(bars(Object.entries(answer.probabilities), answer.text));
  else if (typeof answer.text === "string") parts.push(other ? markedText(answer.text, other.text ?? "") : answerText(answer.text));
  if (answer.n_best?.length > 1) parts.push(otherAnswers(answer.n_best));
  if (answer.alignment?.length) parts.push(linkedTexts(answer));
  const rest = Object.entries(answer).filter(([name, value]) => !KNOWN_FIELDS.has(name) && ["number", "string", "boolean"].includes(typeof value));
  if (rest.length) parts.push(figures(rest.map(([name, value]) => [titled(name), typeof value === "number" ? shortNumber(value) : String(value)])));
  return parts;
}

const isTable = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const shortNumber = (value) => (Number.isInteger(value) ? grouped(value) : decimals(value, 3)).replace(/^-/, "−");

// What the server sent, for what the page does not show.
function rawAnswer(answer) {
  const details = make("details", "", { className: "folded" });
  const pre = make("pre", "", { tabIndex: 0 });
  pre.append(make("code", JSON.stringify(answer, null, 2)));
  details.append(make("summary", "The answer as JSON"), pre);
  return details;
}

// Probabilities as bars, the largest first; those after the first ones are folded.
function bars(pairs, chosen) {
  const sorted = [...pairs].sort(byProbability);
  const element = make("div");
  element.append(barList(sorted.slice(0, MOST_BARS), chosen));
  if (sorted.length > MOST_BARS) {
    const more = make("details", "", { className: "folded" });
    more.append(make("summary", `${sorted.length - MOST_BARS} more`), barList(sorted.slice(MOST_BARS), chosen));
    element.append(more);
  }
  return element;
}

function barList(pairs, chosen) {
  const list = make("dl", "", { className: "bars" });
  for (const [name, probability] of pairs) {
    const row = make("div"), label = make("dt"), value = make("dd", percent(probability));
    label.append(make(name === chosen ? "strong" : "bdi", shownToken(name).replaceAll("␣", " ").trim() || "␣"));
    row.append(label, value);
    row.style.setProperty("--share", probability);
    list.append(row);
  }
  return list;
}

// Words with their tags below them; a tag that the other model does not give to the word has a sign.
function taggedWords({ words, tags, probabilities }, other) {
  const element = make("div", "", { className: "tagged", dir: "auto" });
  words.forEach((word, i) => {
    const differs = other !== null && other.tags?.[i] !== tags[i];
    const pair = make("span", "", { className: differs ? "pair differs" : "pair" });
    const tag = make("span", tags[i], { className: "tag", dir: "auto" });
    if (!["O", "_"].includes(tags[i])) tag.style.setProperty("--colour", `var(--c${colourOf(tags[i])})`);
    if (differs) tag.append(make("span", " ≠", { ariaLabel: "differs" }));
    pair.append(make("span", shownText(word), { className: "word" }), tag);
    if (probabilities?.[i] !== undefined) pair.append(make("small", percent(probabilities[i]), { dir: "ltr" }));
    element.append(pair, " ");
  });
  return element;
}

function colourOf(tag) {
  if (!tagColours.has(tag)) tagColours.set(tag, (tagColours.size % 9) + 1);
  return tagColours.get(tag);
}

// The filled text with its gaps marked. The gaps are found by the text between them.
function filledText({ text }, input, other) {
  const between = input.split("[MASK]");
  const pieces = [];
  let place = 0;
  for (const [i, part] of between.entries()) {
    const bare = part.trim();
    const start = text.indexOf(bare, place);
    if (start < 0) return other ? markedText(text, other.text ?? "") : answerText(text); // the model writes it otherwise
    const end = i === between.length - 1 && !bare ? text.length : start;
    if (i) pieces.push(...filledGap(text.slice(place, end)));
    pieces.push(shownText(text.slice(end, start + bare.length)));
    place = Math.max(end, start + bare.length);
  }
  const paragraph = answerText("");
  paragraph.append(...pieces, shownText(text.slice(place)));
  return paragraph;
}

// The word in a gap, and the spaces around it.
function filledGap(text) {
  const word = text.trim(), before = text.length - text.trimStart().length;
  return [text.slice(0, before), make("ins", shownText(word)), text.slice(before + word.length)];
}

function gapLists(masks) {
  const element = make("div", "", { className: "gaps" });
  masks.forEach((choices, i) => {
    const gap = make("section");
    gap.append(make("h2", masks.length > 1 ? `Gap ${i + 1}` : "The gap"), bars(choices.map((each) => [each.token, each.probability]), choices[0]?.token));
    element.append(gap);
  });
  return masks.length ? [element] : [];
}

function otherAnswers(answers) {
  const list = make("ol", "", { className: "answers" });
  for (const answer of answers) {
    const item = make("li");
    item.append(answerText(answer.text));
    if (Number.isFinite(answer.score)) item.append(make("small", `score ${shortNumber(answer.score)}`));
    list.append(item);
  }
  return list;
}

// Differences between two texts, word by word: the longest common subsequence of their words.
const LONGEST_DIFFERENCE = 1500; // words; the table of a longer text would be too large

const wordsOf = (text) => text.match(/\s+|[^\s]+/g) ?? [];

// For each piece of `text`, as [piece, whether it is missing from `other`].
function markedPieces(text, other) {
  const pieces = wordsOf(text);
  const kept = text === other ? null : commonPlaces(pieces, wordsOf(other));
  return pieces.map((piece, i) => [piece, kept !== null && !kept.has(i) && piece.trim() !== ""]);
}

// The places of the pieces of `first` that are part of the longest common subsequence with `second`.
function commonPlaces(first, second) {
  if (Math.max(first.length, second.length) > LONGEST_DIFFERENCE) return new Set(first.keys());
  const width = second.length + 1;
  const lengths = new Uint16Array((first.length + 1) * width);
  for (let i = first.length - 1; i >= 0; i -= 1) {
    for (let j = second.length - 1; j >= 0; j -= 1) {
      lengths[i * width + j] = first[i] === second[j]
        ? lengths[(i + 1) * width + j + 1] + 1
        : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    }
  }
  const places = new Set();
  for (let i = 0, j = 0; i < first.length && j < second.length;) {
    if (first[i] === second[j]) { places.add(i); i += 1; j += 1; }
    else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) i += 1;
    else j += 1;
  }
  return places;
}

// A text with what differs from another one marked.
function markedText(text, other) {
  const paragraph = answerText("");
  for (const [piece, differs] of markedPieces(text, other)) {
    paragraph.append(differs ? make("mark", shownText(piece)) : shownText(piece));
  }
  return paragraph;
}
