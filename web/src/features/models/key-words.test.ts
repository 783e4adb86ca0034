import { expect, it } from "vitest";
import { keyOf } from "./key-words";

it("names the provider whose key an agent needs, if there is only one", () => {
  expect(keyOf([{ title: "OpenAI" }])).toBe("an OpenAI key");
  expect(keyOf([{ title: "Gemini" }])).toBe("a Gemini key");
  expect(keyOf([{ title: "OpenAI" }, { title: "Gemini" }])).toBe("an API key");
  expect(keyOf([])).toBe("an API key");
});
