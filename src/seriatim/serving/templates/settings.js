// The settings of an endpoint as fields, from the JSON Schema of the model. An empty field is left out of requests.
const PRESET = { alignments: true }; // the page shows alignments, so it asks for them
const HINTS = { "/v1/fill": "A text with [MASK] where a word is missing.", "/v1/tag": "Words, separated by spaces.", "/v1/translate": "The text to translate." };

// The kind of a setting and its limits; a setting that may be null has the kind of its other values.
function settingKind(schema) {
  const choices = schema.anyOf ?? [schema];
  const found = choices.find((each) => each.enum || ["integer", "number", "boolean", "string"].includes(each.type));
  return found ? { ...schema, ...found } : null;
}

// Show one field for each setting; the element is hidden if there is none.
function showSettings(element, schema) {
  const fields = [];
  for (const [name, setting] of Object.entries(schema?.properties ?? {})) {
    const kind = settingKind(setting);
    if (kind) fields.push(settingField(name, kind, setting));
  }
  element.querySelector(".fields").replaceChildren(...fields);
  element.hidden = fields.length === 0;
}

function settingField(name, kind, schema) {
  const id = `setting-${name}`;
  const label = make("label", titled(name), { htmlFor: id });
  const input = settingInput(kind, schema);
  Object.assign(input, { id, name: `setting:${name}` });
  input.dataset.kind = kind.enum ? "string" : kind.type;
  const field = make("p", "", { className: kind.type === "boolean" ? "field check" : "field" });
  field.append(...(kind.type === "boolean" ? [input, label] : [label, input]));
  if (schema.description) field.append(make("small", schema.description));
  if (kind.type === "boolean") {
    input.dataset.default = schema.default === true;
    input.checked = PRESET[name] ?? schema.default === true;
  }
  return field;
}

function settingInput(kind, schema) {
  if (kind.enum) {
    const input = make("select");
    input.append(make("option", "default", { value: "" }), ...kind.enum.map((each) => make("option", String(each), { value: each })));
    return input;
  }
  const input = make("input", "", { type: { boolean: "checkbox", string: "text" }[kind.type] ?? "number" });
  if (input.type === "number") {
    input.step = kind.type === "integer" ? 1 : "any";
    if (kind.minimum !== undefined) input.min = kind.minimum;
    if (kind.maximum !== undefined) input.max = kind.maximum;
  }
  if (input.type !== "checkbox") input.placeholder = String(schema.default ?? "default");
  return input;
}

// The settings that differ from their defaults, for a request.
function chosenSettings(element) {
  const settings = {};
  for (const input of element.querySelectorAll("[data-kind]")) {
    const name = input.name.slice("setting:".length);
    if (input.type === "checkbox") {
      if (String(input.checked) !== input.dataset.default) settings[name] = input.checked;
    } else if (input.value !== "") {
      settings[name] = input.dataset.kind === "string" ? input.value : Number(input.value);
    }
  }
  return settings;
}
