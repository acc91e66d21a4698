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
