// Numbers, texts, and what the page remembers until its tab is closed.
const BITS = 1 / Math.LN2; // bits in a nat

const decimals = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : "∞");
const grouped = (count) => count.toLocaleString("en");
const counted = (count, noun) => `${grouped(count)}\u00a0${noun}${count === 1 ? "" : "s"}`;
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// A name of the API as a title: "length_penalty" becomes "Length penalty".
const titled = (name) => capital(name.replaceAll("_", " "));

// Characters that cannot be seen have a picture or a sign. A line end has both: the sign, and the line that ends.
const PICTURES = /[\u0000-\u0008\u000b-\u001f\u007f]/g;
const pictured = (text) => text.replace(PICTURES, (sign) => String.fromCharCode(sign === "\u007f" ? 0x2421 : 0x2400 + sign.charCodeAt(0)));
const shownText = (text) => pictured(text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥\t"));
const shownToken = (text) => pictured(text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣")) || "∅";

// Names of tokens that are no part of a text.
const isSymbol = (text) => /^(<\/?(s|unk|pad|mask)>|\[(CLS|SEP|UNK|PAD|MASK)\])$/.test(text);

// Storage may be forbidden; the page then works without memory.
function stored(name) {
  try { return sessionStorage.getItem(`seriatim-${name}`); } catch { return null; }
}

function store(name, text) {
  try { sessionStorage.setItem(`seriatim-${name}`, text); } catch { /* for this visit only */ }
}

function storedValues(name) {
  try { return JSON.parse(stored(name) ?? "{}") ?? {}; } catch { return {}; }
}

// A form's fields with names, as they stand; a check box gives true or false.
function fieldValues(form) {
  const fields = [...form.elements].filter((field) => field.name);
  return Object.fromEntries(fields.map((field) => [field.name, field.type === "checkbox" ? field.checked : field.value]));
}

function setFieldValues(form, values) {
  for (const field of form.elements) {
    if (!field.name || !(field.name in values)) continue;
    if (field.type === "checkbox") field.checked = values[field.name] === true;
    else field.value = values[field.name];
  }
}

// A list of figures with their names, such as the bits of a text.
function figures(pairs) {
  const list = make("dl", "", { className: "figures" });
  for (const [name, value, unit] of pairs) {
    const group = make("div");
    const amount = make("dd", value);
    if (unit) amount.append(make("small", `\u00a0${unit}`));
    group.append(make("dt", name), amount);
    list.append(group);
  }
  return list;
}

// The text of an answer, in the direction in which it is written.
const answerText = (text) => make("p", shownText(text), { className: "answer-text", dir: "auto" });
