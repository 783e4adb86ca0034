/** Turn the text in the message box into an answer while a question is open. Pure. */
import type { Schemas } from "@/api/client";
import type { Ask } from "@/api/types";
import { listOrEmpty, recordOrEmpty, textOrEmpty } from "./message-parts";
import { type Filled, type FormField, parseFields, validate } from "./question-form";

export type ParsedAnswer = { body: Schemas["Answer"] } | { error: string };

/** Return the question that the box answers: the oldest open one that fits in one line. Permission requests have buttons instead. */
export function questionOf(asks: readonly Ask[]): Ask | undefined {
  return asks.find(
    (ask) => ask.status === "pending" && ask.kind === "question" && parseFields(ask.detail.form).length <= 1,
  );
}

export function answerOf(ask: Ask, text: string): ParsedAnswer {
  const options = listOrEmpty(ask.detail.options).map(recordOrEmpty);
  if (options.length) {
    const names = options.map((option) => textOrEmpty(option.name) || textOrEmpty(option.optionId));
    const at = placeOf(names, text);
    return at < 0 ? { error: oneOf(names) } : { body: { optionId: textOrEmpty(options[at]?.optionId) } };
  }
  const field = parseFields(ask.detail.form)[0];
  if (!field) return { body: { content: { answer: text } } };
  const filled = valueFrom(field, text);
  if (filled === undefined)
    return {
      error: field.type === "boolean" ? "Answer yes or no." : oneOf(field.choices.map((choice) => choice.label)),
    };
  const { content, errors } = validate([field], { [field.name]: filled });
  return errors[field.name] ? { error: errors[field.name] as string } : { body: { content } };
}

function valueFrom(field: FormField, text: string): Filled | undefined {
  const labels = field.choices.map((choice) => choice.label);
  if (field.type === "boolean") {
    const word = text.trim().toLowerCase();
    return /^(y|yes|true)$/.test(word) ? true : /^(n|no|false)$/.test(word) ? false : undefined;
  }
  if (field.type === "choice") {
    const at = placeOf(labels, text);
    return at < 0 ? undefined : String(at);
  }
  if (field.type === "choices") {
    const places = text.split(",").map((part) => placeOf(labels, part));
    return places.some((at) => at < 0) ? undefined : places.map(String);
  }
  return text;
}

/** Find a choice by its one-based number or by its label; -1 if there is none. */
function placeOf(labels: readonly string[], text: string): number {
  const word = text.trim().toLowerCase();
  const named = labels.findIndex((label) => label.trim().toLowerCase() === word);
  if (named >= 0) return named;
  return /^\d{1,4}$/.test(word) && Number(word) <= labels.length ? Number(word) - 1 : -1;
}

const oneOf = (labels: readonly string[]) => `Answer with one of: ${labels.join(", ")}.`;
