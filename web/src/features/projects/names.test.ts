import { expect, it } from "vitest";
import type { Project } from "@/api/types";
import { findByRepository, suggestName } from "./names";

it("takes the last part of the repository's URL", () => {
  expect(suggestName("https://example.org/team/website.git")).toBe("website");
  expect(suggestName("git@example.org:website")).toBe("website");
  expect(suggestName(" /srv/git/website.git/ ")).toBe("website");
  expect(suggestName("")).toBe("");
});

it("finds the active project that has the repository already", () => {
  const shop = { name: "shop", repository: "https://example.org/team/shop.git", archivedAt: null } as Project;
  expect(findByRepository([shop], " https://example.org/team/shop/ ")).toBe(shop);
  expect(findByRepository([shop], "https://example.org/team/shop.git")).toBe(shop);
  expect(findByRepository([shop], "https://example.org/team/sho")).toBeUndefined();
  expect(
    findByRepository([{ ...shop, archivedAt: "2026-01-01T00:00:00Z" }], "https://example.org/team/shop"),
  ).toBeUndefined();
  expect(findByRepository([{ ...shop, repository: null }], "")).toBeUndefined();
});
