import { describe, expect, it } from "vitest";
import type { Project, PullRequest } from "@/api/types";
import { detailOf, forgeOf, helpFor, mergeBar, quoteRemark, type Remark, runStatus, splitNames } from "./forge";

const project = (repository: string, forge: object = { kind: "auto" }) =>
  ({ repository, settings: { forge } }) as unknown as Project;
const pull = (over: object) =>
  ({
    state: "open",
    draft: false,
    mergeable: null,
    detail: {},
    updatedAt: "2026-01-01",
    ...over,
  }) as unknown as PullRequest;

describe("forgeOf", () => {
  it("detects GitHub by host, by API URL or by setting", () => {
    expect(forgeOf(project("https://github.com/acme/site.git"))).toBe("github");
    expect(forgeOf(project("git@github.com:acme/site.git"))).toBe("github");
    expect(forgeOf(project("ssh://git@github.com/acme/site.git"))).toBe("github");
    expect(
      forgeOf(project("https://git.example.org/a.git", { kind: "auto", apiUrl: "https://git.example.org/api/v3" })),
    ).toBe("github");
    expect(forgeOf(project("https://example.org/github.com/x.git"))).toBe("plain");
    expect(forgeOf(project("/srv/site.git"))).toBe("plain");
    expect(forgeOf(project("https://github.com/acme/site.git", { kind: "plain" }))).toBe("plain");
  });
});

describe("detailOf", () => {
  it("keeps well-formed entries, newest remark first, and ignores the rest", () => {
    const detail = detailOf(
      pull({
        detail: {
          runs: [{ name: "test", status: "completed", conclusion: "failure" }, null, "x"],
          remarks: [
            { kind: "comment", id: 1, author: "grace", text: "a", at: "2026-01-01" },
            { kind: "check", id: 2, text: "b", at: "2026-01-03" },
            {
              kind: "review",
              id: 3,
              author: "ada",
              state: "approved",
              text: "",
              at: "2026-01-02",
              path: "a.py",
              line: 3,
            },
          ],
          labels: ["bug", 5],
        },
      }),
    );
    expect(detail.runs).toHaveLength(1);
    expect(detail.remarks.map((remark) => remark.id)).toEqual(["3", "1"]);
    expect(detail.labels).toEqual(["bug"]);
    expect(detailOf(pull({ detail: { runs: "no" } })).runs).toEqual([]);
  });
});

describe("words", () => {
  it("describes how a run ended or that it is running", () => {
    expect(runStatus({ name: "", status: "completed", conclusion: "success", url: null, summary: null }).tone).toBe(
      "ok",
    );
    expect(runStatus({ name: "", status: "in_progress", conclusion: null, url: null, summary: null }).busy).toBe(true);
  });
  it("explains why it cannot be merged, and what helps", () => {
    expect(mergeBar(pull({}))).toBeNull();
    expect(mergeBar(pull({ draft: true }))).toMatch(/draft/);
    expect(mergeBar(pull({ mergeable: false }))).toMatch(/conflicts/);
    expect(helpFor("forge_unauthorized")).toBe("credential");
    expect(helpFor("internal")).toBeNull();
  });
  it("splits names", () => {
    expect(splitNames(" bug, good first issue,,bug\nx")).toEqual(["bug", "good first issue", "x"]);
  });
});

it("quotes a remark with its author and place", () => {
  const remark = { author: "ada", text: "Too long.\n\nSplit it.\n", path: null, line: null } as Remark;
  expect(quoteRemark(remark)).toBe("ada wrote on the pull request:\n\n> Too long.\n> \n> Split it.");
  expect(quoteRemark({ ...remark, path: "a.py", line: 3 })).toMatch(/^ada wrote on the pull request \(a\.py:3\):/);
});
