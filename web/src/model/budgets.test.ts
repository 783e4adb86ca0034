import { expect, it } from "vitest";
import { spentLimitOf } from "./budgets";

it.each([
  ["The task has used up its budget of 5.00 US dollars for models: 5.10 spent.", "task"],
  ["The project has used up its budget of 900 tokens for models for this month: 901 used.", "project"],
  ["The owner of the session has used up its budget of 5.00 US dollars for models for this month.", "user"],
  ["The project has a budget of 5.00 US dollars, but the price of the model x is unknown. Set its price.", "price"],
])("%s", (sentence, limit) => {
  expect(spentLimitOf(sentence)).toBe(limit);
});
