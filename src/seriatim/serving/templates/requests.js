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
