import { expect, it } from "vitest";
import { describeKey } from "./key-description";

it("names the provider whose key an agent needs, if there is only one", () => {
  expect(describeKey([{ title: "OpenAI" }])).toBe("an OpenAI key");
  expect(describeKey([{ title: "Gemini" }])).toBe("a Gemini key");
  expect(describeKey([{ title: "OpenAI" }, { title: "Gemini" }])).toBe("an API key");
  expect(describeKey([])).toBe("an API key");
});
