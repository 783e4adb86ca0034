/** A merge that failed: why, and what helps. */
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { Tooltip } from "radix-ui";
import { renderToStaticMarkup } from "react-dom/server";
import { expect, it, vi } from "vitest";

vi.hoisted(() => vi.stubGlobal("location", { origin: "http://localhost" })); // read by the API client

import { ApiError } from "@/api/client";
import type { PullSummary } from "@/api/types";
import { MergeError } from "./merge-button";

const render = (error: unknown) =>
  renderToStaticMarkup(
    <QueryClientProvider client={new QueryClient()}>
      <Tooltip.Provider>
        <MergeError error={error} pull={{ id: "pul_1" } as PullSummary} onMerged={() => undefined} />
      </Tooltip.Provider>
    </QueryClientProvider>,
  );

it("shows the command for a branch that is checked out on the server, and a way to check it", () => {
  const command = "git -C /srv/shop merge task/hello";
  const detail = `main is checked out in /srv/shop. Merge it there, then refresh the pull request: ${command}`;
  const problem = { code: "branch_checked_out", detail, command } as object;
  const html = render(new ApiError(409, problem));
  expect(html).toMatch(
    /Merge it there, then refresh the pull request:<\/p>.*<code>git -C \/srv\/shop merge task\/hello<\/code>/s,
  );
  expect(html).toContain("Check whether it was merged");
});

it("shows other errors without a command", () => {
  const html = render(new ApiError(409, { code: "conflicts", detail: "Both sides changed a.txt." }));
  expect(html).toMatch(/role="alert".*Both sides changed a\.txt\./);
  expect(html).not.toContain("Check whether");
  expect(render(null)).toBe("");
});
