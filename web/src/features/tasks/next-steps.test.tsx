/** What a failed task offers besides a retry. */
import { renderToStaticMarkup } from "react-dom/server";
import { expect, it, vi } from "vitest";

type Search = { tab: string };

vi.hoisted(() => vi.stubGlobal("location", { origin: "http://localhost" })); // read by the API client
vi.mock("@tanstack/react-router", async (original) => ({
  ...(await original<typeof import("@tanstack/react-router")>()),
  Link: ({ search, children }: { search: Search | ((search: object) => Search); children: React.ReactNode }) => (
    <a href={`?tab=${(typeof search === "function" ? search({}) : search).tab}`}>{children}</a>
  ),
  useNavigate: () => () => undefined,
}));

import type { Attempt, Task } from "@/api/types";
import { NextSteps } from "./next-steps";

function render(errorCode: string | null, failedStep = "provision") {
  const attempt = { errorCode, steps: [{ name: failedStep, status: "failed" }] } as Attempt;
  return renderToStaticMarkup(<NextSteps task={{ projectId: "prj_1" } as Task} attempt={attempt} />);
}

it.each(["remote_refused", "forge_unauthorized", "forge_forbidden"])("%s leads to the project's token", (code) => {
  expect(render(code)).toMatch(/href="\?tab=access".*Replace the token/);
});

it.each(["template_not_found", "engine_invalid"])("%s leads to the sandbox settings", (code) => {
  expect(render(code)).toMatch(/href="\?tab=setup".*Change the sandbox settings/);
});

it("refused changes of CI files lead to the changes and to the project's settings", () => {
  expect(render("ci_files")).toMatch(
    /href="\?tab=changes".*Review the changes.*href="\?tab=forge".*Allow changes of CI files/,
  );
});

it("a request that the engine refuses in another step has only a retry", () => {
  expect(render("engine_invalid", "checkout")).toBe("");
});

it.each(["agent_failed", null])("%s has only a retry", (code) => {
  expect(render(code)).toBe("");
});

it.each(["model_busy", "model_unknown"])(
  "%s offers another agent or model, which settings would not change",
  (code) => {
    expect(render(code)).toMatch(/^<div[^>]*><button.*Change the agent or model<\/button><\/div>$/);
  },
);
