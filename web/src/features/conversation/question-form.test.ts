import { expect, it } from "vitest";
import { parseFields, validate } from "./question-form";

const schema = {
  type: "object",
  properties: {
    name: { type: "string", title: "Name", minLength: 2, maxLength: 10 },
    age: { type: "integer", minimum: 1, maximum: 120 },
    sure: { type: "boolean", default: true },
    colour: { enum: ["r", "g"], enumNames: ["Red", "Green"], default: "g" },
    size: { type: "string", oneOf: [{ const: "s", title: "Small" }, { const: "l" }] },
    tags: { type: "array", items: { enum: ["a", "b"] }, minItems: 1 },
    mail: { type: "string", format: "email" },
  },
  required: ["name", "size"],
};

it("builds fields from a schema", () => {
  const fields = parseFields(schema);
  expect(fields.map((field) => field.type)).toEqual([
    "text",
    "integer",
    "boolean",
    "choice",
    "choice",
    "choices",
    "text",
  ]);
  expect(fields[3]?.choices.map((choice) => choice.label)).toEqual(["Red", "Green"]);
  expect(fields[3]?.initial).toBe("1");
  expect(fields[4]?.choices).toEqual([
    { value: "s", label: "Small", hint: "" },
    { value: "l", label: "l", hint: "" },
  ]);
});

it("shows hidden characters in labels and sends the choice unchanged", () => {
  const [field] = parseFields({ properties: { x: { title: "a\u202eb", description: "\u200b", enum: ["y\u200b"] } } });
  expect(field).toMatchObject({ label: "a⟨U+202E⟩b", hint: "⟨U+200B⟩" });
  expect(field?.choices).toEqual([{ value: "y\u200b", label: "y⟨U+200B⟩", hint: "" }]);
});

it("accepts a question of Claude Code that allows a custom answer beside its choices", () => {
  const fields = parseFields({
    type: "object",
    properties: {
      question_0: {
        type: "string",
        title: "Colour",
        oneOf: [{ const: "Red" }, { const: "Blue", description: "as the sky" }],
      },
      question_0_custom: { type: "string", title: "Other" },
    },
  });
  expect(fields[0]?.choices.map((choice) => choice.hint)).toEqual(["", "as the sky"]);
  expect(validate(fields, { question_0: "1" })).toEqual({ content: { question_0: "Blue" }, errors: {} });
  expect(validate(fields, { question_0_custom: "green" })).toEqual({
    content: { question_0_custom: "green" },
    errors: {},
  });
});

it("reports missing and invalid values", () => {
  const fields = parseFields(schema);
  expect(validate(fields, {}).errors).toEqual({ name: "This field is required.", size: "Choose one." });
  const wrong = validate(fields, { name: "x", age: "1.5", size: "0", mail: "nobody" }).errors;
  expect(wrong).toEqual({
    name: "Use at least 2 characters.",
    age: "Enter a whole number.",
    mail: "Enter a valid email address.",
  });
});

it("converts values to their types and omits empty ones", () => {
  const { content, errors } = validate(parseFields(schema), { name: "Ada", age: "36", size: "1", tags: ["1"] });
  expect(errors).toEqual({});
  expect(content).toEqual({ name: "Ada", age: 36, sure: true, colour: "g", size: "l", tags: ["b"] });
});

it("tolerates an invalid schema", () => {
  expect(parseFields(null)).toEqual([]);
  expect(parseFields("… (cut)")).toEqual([]);
  expect(parseFields({ properties: { x: 5 } })).toHaveLength(1);
});

it("treats special property names as plain names", () => {
  const named = JSON.parse(
    '{"__proto__": {"type": "string"}, "constructor": {"type": "string"}, "toString": {"enum": [{"a": 1}]}}',
  );
  const fields = parseFields({ properties: named, required: ["__proto__", "constructor", "toString"] });
  expect(Object.keys(validate(fields, {}).errors)).toEqual(["__proto__", "constructor", "toString"]);
  const filled = JSON.parse('{"__proto__": "x", "constructor": "y", "toString": "0"}');
  expect(JSON.stringify(validate(fields, filled).content)).toBe(
    '{"__proto__":"x","constructor":"y","toString":{"a":1}}',
  );
});
