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
