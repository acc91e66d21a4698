// What all panels share: a form that starts a request, a button that stops it, what happens in words, and the request
// as a command. A panel gives `requests()`, a list of [path, body], and `respond(signal)`, which shows the answer.
const wide = matchMedia("(min-width: 56rem)");

class Panel {
  constructor(name, verb) {
    this.section = document.getElementById(name);
    this.form = this.section.querySelector("form");
    this.form.append(document.getElementById("panel-parts").content.cloneNode(true));
    const part = (selector) => this.form.querySelector(selector);
    Object.assign(this, { go: part(".go"), copy: part(".curl-copy"), said: part("[role=status]"), progress: part(".progress") });
    Object.assign(this, { error: part(".error"), output: part(".output"), command: part("details.curl"), text: part("textarea") });
    this.name = name;
    this.verb = verb;
    this.control = null;
    this.model = null;
    this.go.textContent = verb;
    this.listen();
  }

  listen() {
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.control) this.stop();
      else this.start();
    });
    this.form.addEventListener("input", () => this.changed());
    // Beside the text there is room for the settings; below it they are folded.
    const folded = this.form.querySelector("details.settings");
    if (folded) {
      folded.open = wide.matches;
      wide.addEventListener("change", () => { folded.open = wide.matches; });
    }
    this.copy.addEventListener("click", () => this.copyCommand());
    this.command.addEventListener("toggle", () => this.tellCommand());
  }

  // The name under which the fields are remembered.
  get memory() { return `form-${this.name}`; }

  // Another model was chosen: what is shown was not written by it.
  setModel(model) {
    this.abandon();
    this.model = model;
    this.clear();
    this.restore();
    this.tellCommand();
  }

  restore() { setFieldValues(this.form, storedValues(this.memory)); }

  changed() {
    store(this.memory, JSON.stringify(fieldValues(this.form)));
    this.tellCommand();
  }

  clear() {
    tokenBox.close();
    this.output.replaceChildren();
    this.say("");
    this.fail(null);
  }

  say(text, progress = "") {
    this.said.textContent = text;
    this.progress.textContent = progress;
  }

  fail(error) {
    this.error.textContent = error?.message ?? "";
    if (error?.status === 401) askForKey();
  }

  stop() { this.control?.abort(); }

  // Stop without a word: what would be shown is not wanted any more.
  abandon() {
    this.stop();
    this.control = null;
    this.go.textContent = this.verb;
  }

  async start() {
    const control = new AbortController(), started = performance.now();
    this.control = control;
    this.begin();
    this.say("Waiting for the model…");
    this.go.textContent = "Stop";
    let problem = null;
    try {
      await this.respond(control.signal);
    } catch (error) {
      problem = error;
    }
    if (this.control !== control) return; // abandoned
    this.control = null;
    this.go.textContent = this.verb;
    this.end(problem, control.signal.aborted, (performance.now() - started) / 1000);
  }

  end(problem, isStopped, seconds) {
    if (isStopped) this.say(this.stopped(seconds));
    else this.say(problem ? "" : this.summary(seconds));
    if (problem && !isStopped) this.fail(problem instanceof ServerError ? problem : new ServerError(0, `The answer cannot be shown: ${problem.message}`));
  }

  begin() { this.clear(); }
  summary(seconds) { return `Answered in ${decimals(seconds, 2)}\u00a0s.`; }
  stopped() { return "Stopped."; }

  async ask(request, signal) {
    const [path, body] = request;
    return sendForJson(path, { method: "POST", body, signal });
  }

  get commands() { return this.requests().map(([path, body]) => curlCommand(path, body)).join("\n\n"); }

  tellCommand() {
    if (this.command.open && this.model) this.command.querySelector("code").textContent = this.commands;
  }

  // Without permission to copy, as on a page that was not sent over HTTPS, the command is selected instead.
  async copyCommand() {
    const { commands } = this;
    try {
      await navigator.clipboard.writeText(commands);
      this.say("The command was copied.");
    } catch {
      this.command.open = true;
      this.tellCommand();
      getSelection().selectAllChildren(this.command.querySelector("code"));
      this.say("The browser does not allow copying. The command is selected below.");
    }
  }
}
