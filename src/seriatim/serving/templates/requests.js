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

// Requests to the server, its errors in words, and the same requests as commands.
const KEY = "key";

class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const authorization = () => (stored(KEY) ? { Authorization: `Bearer ${stored(KEY)}` } : {});

// Send a request, and return the response if it is not an error. `signal` aborts it.
async function send(path, { method = "GET", body, signal } = {}) {
  const headers = { ...authorization(), ...(body ? { "Content-Type": "application/json" } : {}) };
  let response;
  try {
    response = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body), cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The server cannot be reached.");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function sendForJson(path, options) {
  const response = await send(path, options);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(response.status, "The answer of the server is not complete.");
  }
}

async function refusal(response) {
  const content = await response.json().catch(() => null);
  const message = content?.error?.message ?? "The server gave no reason.";
  const wait = response.headers.get("Retry-After");
  const again = wait ? ` Try again in ${/^\d+$/.test(wait) ? `${wait}\u00a0s` : wait}.` : "";
  return new ServerError(response.status, `Error ${response.status}: ${sentence(message)}${again}`);
}

const sentence = (text) => (/[.!?…]$/.test(text) ? text : `${text}.`);

// Quote a text for a POSIX shell: within single quotes only the quote itself has a meaning.
const quotedForShell = (text) => `'${text.replaceAll("'", "'\\''")}'`;

// The command that sends a request of `send`. The key is named by a variable, so that it can be shown and pasted.
function curlCommand(path, body) {
  const parts = [
    `curl ${body.stream ? "-N " : ""}${quotedForShell(new URL(path, location.href).href)}`,
    `-H ${quotedForShell("Content-Type: application/json")}`,
    ...(stored(KEY) ? ['-H "Authorization: Bearer $SERIATIM_API_KEY"'] : []),
    `-d ${quotedForShell(JSON.stringify(body))}`,
  ];
  return parts.join(" \\\n  ");
}

// Server-sent events of a request. Only their data is used, as in all streams of this API.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", data = [];
  try {
    for (;;) {
      const { done, value } = await nextPiece(reader);
      if (done) return;
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
        else if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // the connection is closed, also if the caller stops early
  }
}

async function nextPiece(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The connection broke off.");
  }
}

// The objects of a stream, until its end mark. A stream without the mark has broken off.
async function* streamedObjects(path, body, signal) {
  const response = await send(path, { method: "POST", body, signal });
  for await (const data of events(response)) {
    if (data === "[DONE]") return;
    const object = JSON.parse(data);
    if (object.error) throw new ServerError(0, `The server stopped: ${sentence(object.error.message)}`);
    yield object;
  }
  throw new ServerError(0, "The connection broke off.");
}
