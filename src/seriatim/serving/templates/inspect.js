// The page of `seriatim inspect` for a text, in a frame that has no access to this page.
class InspectPanel extends Panel {
  constructor() { super("inspect", "Inspect"); }

  requests() { return [["/v1/inspect", { model: this.model.id, input: this.text.value }]]; }

  async respond(signal) {
    const { url } = await this.ask(this.requests()[0], signal);
    const address = new URL(url, location.href);
    if (address.origin !== location.origin) throw new ServerError(0, "The page is on another server, and was not opened.");
    const frame = make("iframe", "", { title: `Inspection of ${this.model.id}`, src: address.href });
    frame.setAttribute("sandbox", "allow-scripts");
    const link = make("a", "Open the page in a new tab", { href: address.href, target: "_blank", rel: "noopener noreferrer" });
    const line = make("p");
    line.append(link);
    this.output.append(line, frame);
  }
}
