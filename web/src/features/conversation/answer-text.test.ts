import { describe, expect, it } from "vitest";
import type { Ask } from "@/api/types";
import { answerOf, questionOf } from "./answer-text";

const ask = (detail: Record<string, unknown>, over: Partial<Ask> = {}) =>
  ({ id: "ask_1", kind: "question", status: "pending", title: "Which?", detail, ...over }) as Ask;
const form = (field: Record<string, unknown>) => ({ form: { properties: { colour: field } } });

describe("questionOf", () => {
  it("returns an open question that one line can answer", () => {
    const several = ask({ form: { properties: { a: {}, b: {} } } });
    const open = ask(form({ type: "string" }));
    expect(questionOf([ask({}, { kind: "permission" }), ask({}, { status: "answered" }), several, open])).toBe(open);
    expect(questionOf([several])).toBeUndefined();
  });
});

describe("answerOf", () => {
  it("passes text through unchanged", () => {
    expect(answerOf(ask({}), "green")).toEqual({ body: { content: { answer: "green" } } });
    expect(answerOf(ask(form({ type: "string" })), "green")).toEqual({ body: { content: { colour: "green" } } });
  });
  it("finds a choice by its number or its label", () => {
    const question = ask(form({ enum: ["r", "b"], enumNames: ["Red", "Blue"] }));
    expect(answerOf(question, "2")).toEqual({ body: { content: { colour: "b" } } });
    expect(answerOf(question, " blue")).toEqual({ body: { content: { colour: "b" } } });
    expect(answerOf(question, "green")).toEqual({ error: "Answer with one of: Red, Blue." });
    expect(answerOf(ask(form({ type: "array", items: { enum: ["r", "b"] } })), "b, 1")).toEqual({
      body: { content: { colour: ["b", "r"] } },
    });
  });
  it("understands yes and no, numbers and the platform's options", () => {
    expect(answerOf(ask(form({ type: "boolean" })), "Yes")).toEqual({ body: { content: { colour: true } } });
    expect(answerOf(ask(form({ type: "integer" })), "many")).toEqual({ error: "Enter a number." });
    const options = [{ optionId: "go", name: "Continue" }];
    expect(answerOf(ask({ by: "platform", options }), "continue")).toEqual({ body: { optionId: "go" } });
  });
});
