// Text that a language model writes after a prompt, token by token.
const FINISHES = { length: "max tokens was reached", stop: "the text ended" };
const OPTIONAL_NUMBERS = ["max_tokens", "temperature", "top_p", "seed"];
const ALTERNATIVES = 5;
const PROGRESS_EVERY = 200; // milliseconds

// "\n" and "\t" in a field of one line stand for a line end and a tab, "\\" for a backslash.
const unescaped = (text) => text.replace(/\\([nt\\])/g, (_, sign) => ({ n: "\n", t: "\t", "\\": "\\" })[sign]);

class WritePanel extends Panel {
  constructor() {
    super("write", "Generate");
    this.sessionChoice = document.getElementById("session-choice");
    this.session = document.getElementById("session");
    document.getElementById("new-session").addEventListener("click", () => this.endSession());
    this.session.addEventListener("change", () => this.endSession());
    this.sessionName = null;
    this.hasSession = false; // whether the server knows the session
    this.texts = null;
  }

  setModel(model) {
    this.forgetSession();
    super.setModel(model);
    this.sessionChoice.hidden = !model.sessions;
    const tokens = this.form.elements.max_tokens;
    tokens.max = model.max_tokens ?? "";
    if (model.max_tokens && Number(tokens.value) > model.max_tokens) tokens.value = model.max_tokens;
  }

  get inSession() { return this.model.sessions && this.session.checked; }

  requests() {
    const values = fieldValues(this.form);
    const body = { model: this.model.id, prompt: values.prompt };
    for (const name of OPTIONAL_NUMBERS) if (values[name] !== "") body[name] = Number(values[name]);
    if (values.stop) body.stop = unescaped(values.stop);
    if (this.inSession) body.session = this.sessionName ??= `playground-${crypto.getRandomValues(new Uint32Array(1))[0].toString(36)}`;
    return [["/v1/completions", { ...body, logprobs: ALTERNATIVES, stream: true }]];
  }

  // In a session the new text follows the one that is shown.
  begin() {
    if (!this.inSession || !this.texts) {
      this.clear();
      this.texts = new TokenText("Text", this.model.vocabulary_size);
      this.output.append(this.texts.element);
    }
    this.fail(null);
    Object.assign(this, { count: 0, finish: null, told: 0 });
  }

  clear() {
    super.clear();
    this.texts = null;
  }

  async respond(signal) {
    const [[path, body]] = this.requests();
    const { texts } = this;
    const joiner = new TokenJoiner(), started = performance.now();
    let isRead = false;
    try {
      for await (const { choices: [choice] } of streamedObjects(path, body, signal)) {
        if (!isRead) this.showPrompt(body.prompt);
        isRead = true;
        if (!choice) continue; // the last object may hold the usage alone
        const tokens = streamedTokens(choice);
        this.count += tokens.length;
        this.finish = choice.finish_reason ?? this.finish;
        texts.add(joiner.add(tokens, choice.text));
        this.tellProgress(started);
      }
    } finally {
      texts.add(joiner.rest());
      texts.flush();
    }
  }

  // The prompt is shown when the model has read it. In a session it must not be sent again.
  showPrompt(prompt) {
    this.texts.addPlain(prompt);
    if (!this.inSession) return;
    this.hasSession = true;
    this.text.value = "";
    this.changed();
  }

  tellProgress(started) {
    const now = performance.now();
    if (now - this.told < PROGRESS_EVERY) return;
    if (!this.told) this.said.textContent = "Writing…";
    this.told = now;
    this.progress.textContent = this.speed((now - started) / 1000);
  }

  speed(seconds) { return `${counted(this.count, "token")} in ${decimals(seconds, 2)}\u00a0s, ${decimals(this.count / seconds, 0)}\u00a0tokens/s`; }
  summary(seconds) { return `${this.speed(seconds)}; ${FINISHES[this.finish] ?? this.finish ?? "no reason for the end was given"}.`; }
  stopped(seconds) { return `Stopped after ${this.speed(seconds)}.`; }

  async endSession() {
    this.abandon();
    const name = this.forgetSession();
    this.clear();
    this.tellCommand();
    if (!name) return;
    const path = `/v1/sessions/${name}?model=${encodeURIComponent(this.model.id)}`;
    const remove = () => send(path, { method: "DELETE" });
    // A text that was just stopped may still use the session; the server also forgets it later by itself.
    await remove().catch(() => setTimeout(() => remove().catch(() => {}), 2000));
  }

  forgetSession() {
    const name = this.hasSession ? this.sessionName : null;
    Object.assign(this, { sessionName: null, hasSession: false });
    return name;
  }
}
