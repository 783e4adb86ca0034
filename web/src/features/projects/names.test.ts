import { expect, it } from "vitest";
import { nameOf } from "./names";

it("takes the last part of the repository's URL", () => {
  expect(nameOf("https://example.org/team/website.git")).toBe("website");
  expect(nameOf("git@example.org:website")).toBe("website");
  expect(nameOf(" /srv/git/website.git/ ")).toBe("website");
  expect(nameOf("")).toBe("");
});
