import { expect, it } from "vitest";
import { suggestName } from "./names";

it("takes the last part of the repository's URL", () => {
  expect(suggestName("https://example.org/team/website.git")).toBe("website");
  expect(suggestName("git@example.org:website")).toBe("website");
  expect(suggestName(" /srv/git/website.git/ ")).toBe("website");
  expect(suggestName("")).toBe("");
});
