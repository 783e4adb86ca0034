/** The form of a task that starts from a session. */
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { Tooltip } from "radix-ui";
import { renderToStaticMarkup } from "react-dom/server";
import { expect, it, vi } from "vitest";

vi.hoisted(() => vi.stubGlobal("location", { origin: "http://localhost" })); // read by the API client

import { keys } from "@/api/keys";
import type { Task } from "@/api/types";
import { TaskFields } from "./task-fields";
import { emptyDraft } from "./task-form";

function render(fromSessionId: string, task?: Task) {
  const client = new QueryClient();
  client.setQueryData(keys.session("ses_1"), { id: "ses_1", title: "Explore" });
  return renderToStaticMarkup(
    <QueryClientProvider client={client}>
      <Tooltip.Provider>
        <TaskFields
          draft={emptyDraft("prj_1", "demo", fromSessionId)}
          set={() => undefined}
          errors={{}}
          task={task}
          projects={[]}
        />
      </Tooltip.Provider>
    </QueryClientProvider>,
  );
}

it("names the session, whose project and commit are not to be chosen", () => {
  const html = render("ses_1");
  expect(html).toContain("a copy of the session “Explore”");
  expect(html).not.toMatch(/Project<|Base branch</);
  expect(html).not.toContain("Start from the base branch instead");
  expect(render("")).toMatch(/Project<[\s\S]*Base branch</);
});

it("an existing task can start from the base branch instead", () => {
  expect(render("ses_1", { id: "tsk_1", status: "backlog" } as Task)).toContain("Start from the base branch instead");
});
