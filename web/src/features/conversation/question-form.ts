/** Build a form from the JSON schema of an agent's question, validate the input, and convert it to the answer's types. Pure. */
import { markHidden } from "@/lib/hidden-characters";
import { listOrEmpty, recordOrEmpty, textOrEmpty } from "./message-parts";

export interface FormField {
  name: string;
  label: string;
  hint: string;
  type: "text" | "long" | "number" | "integer" | "boolean" | "choice" | "choices";
  choices: { value: unknown; label: string; hint: string }[];
  required: boolean;
  initial: Filled;
  least: number | undefined;
  most: number | undefined;
  format: string;
  pattern: string;
}
/** The value of a field: text, a checkbox state, or the indexes of the chosen options. */
export type Filled = string | boolean | string[];

const number = (value: unknown): number | undefined => (typeof value === "number" ? value : undefined);

/** Return the fields of a form. An invalid schema gives no fields, or text fields. */
export function parseFields(schema: unknown): FormField[] {
  const form = recordOrEmpty(schema);
  const required = new Set(listOrEmpty(form.required));
  return Object.entries(recordOrEmpty(form.properties)).map(([name, value]) =>
    fieldOf(name, recordOrEmpty(value), required.has(name)),
  );
}

function fieldOf(name: string, field: Record<string, unknown>, required: boolean): FormField {
  const many = field.type === "array";
  const choices = choicesOf(many ? recordOrEmpty(field.items) : field);
  const numeric = field.type === "number" || field.type === "integer";
  const type: FormField["type"] = choices.length
    ? many
      ? "choices"
      : "choice"
    : field.type === "boolean"
      ? "boolean"
      : numeric
        ? (field.type as "number" | "integer")
        : (number(field.maxLength) ?? 1000) > 200 && !field.format
          ? "long"
          : "text";
  const place = (wanted: unknown) => choices.findIndex((choice) => choice.value === wanted);
  const start = field.default;
  let initial: Filled = start === undefined || start === null ? "" : String(start);
  if (type === "boolean") initial = start === true;
  else if (type === "choices")
    initial = listOrEmpty(start)
      .map(place)
      .filter((at) => at >= 0)
      .map(String);
  else if (type === "choice") initial = place(start) >= 0 ? String(place(start)) : "";
  return {
    name,
    label: markHidden(textOrEmpty(field.title) || name),
    hint: markHidden(textOrEmpty(field.description)),
    type,
    choices,
    required,
    initial,
    least: number(numeric ? field.minimum : many ? field.minItems : field.minLength),
    most: number(numeric ? field.maximum : many ? field.maxItems : field.maxLength),
    format: textOrEmpty(field.format),
    pattern: textOrEmpty(field.pattern),
  };
}

function choicesOf(field: Record<string, unknown>): FormField["choices"] {
  if (Array.isArray(field.enum)) {
    const names = listOrEmpty(field.enumNames);
    return field.enum.map((value, index) => ({
      value,
      label: markHidden(textOrEmpty(names[index]) || String(value)),
      hint: "",
    }));
  }
  return listOrEmpty(field.oneOf ?? field.anyOf).flatMap((option) => {
    const { const: value, title, description } = recordOrEmpty(option);
    return value === undefined
      ? []
      : [
          {
            value,
            label: markHidden(textOrEmpty(title) || String(value)),
            hint: markHidden(textOrEmpty(description)),
          },
        ];
  });
}

export interface Checked {
  content: Record<string, unknown>;
  errors: Record<string, string>;
}

/** Return a field's current value. Uses Object.hasOwn because an agent may name a field `constructor`. */
export function currentValue(field: FormField, filled: Readonly<Record<string, Filled>>): Filled {
  return Object.hasOwn(filled, field.name) ? (filled[field.name] as Filled) : field.initial;
}

/** Return the answer to send, by field name, and the errors of fields that are not valid. */
export function validate(fields: readonly FormField[], filled: Readonly<Record<string, Filled>>): Checked {
  const content: Record<string, unknown> = Object.create(null);
  const errors: Record<string, string> = Object.create(null);
  for (const field of fields) {
    const given = currentValue(field, filled);
    const error = problem(field, given);
    if (error) errors[field.name] = error;
    else if (
      field.type === "boolean" ||
      (given !== "" && !(Array.isArray(given) && !given.length && !field.required))
    ) {
      content[field.name] = valueIn(field, given);
    }
  }
  return { content, errors };
}

function valueIn(field: FormField, given: Filled): unknown {
  if (field.type === "boolean") return given === true;
  if (field.type === "choice") return field.choices[Number(given)]?.value;
  if (Array.isArray(given)) return given.map((at) => field.choices[Number(at)]?.value);
  return field.type === "number" || field.type === "integer" ? Number(given) : String(given);
}

function problem(field: FormField, given: Filled): string | undefined {
  const { type, least, most } = field;
  if (type === "boolean") return undefined;
  if (Array.isArray(given)) {
    if (field.required && !given.length) return "Choose at least one.";
    if (given.length && least !== undefined && given.length < least) return `Choose at least ${least}.`;
    return most !== undefined && given.length > most ? `Choose at most ${most}.` : undefined;
  }
  const text = String(given);
  if (!text.trim()) return field.required ? (type === "choice" ? "Choose one." : "This field is required.") : undefined;
  if (type === "choice") return undefined;
  if (type === "number" || type === "integer") {
    const value = Number(text);
    if (!Number.isFinite(value)) return "Enter a number.";
    if (type === "integer" && !Number.isInteger(value)) return "Enter a whole number.";
    if (least !== undefined && value < least) return `Enter ${least} or more.`;
    return most !== undefined && value > most ? `Enter ${most} or less.` : undefined;
  }
  if (least !== undefined && text.length < least) return `Use at least ${least} characters.`;
  if (most !== undefined && text.length > most) return `Use at most ${most} characters.`;
  if (field.format === "email" && !/^\S+@\S+\.\S+$/.test(text)) return "Enter a valid email address.";
  if (field.format === "uri" && !URL.canParse(text)) return "Enter a valid URL, such as https://example.com.";
  return undefined;
}
