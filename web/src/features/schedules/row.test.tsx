/** Who may change a schedule: its tasks run on behalf of its creator. */
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { Tooltip } from "radix-ui";
import { renderToStaticMarkup } from "react-dom/server";
import { expect, it, vi } from "vitest";

vi.hoisted(() => vi.stubGlobal("location", { origin: "http://localhost" })); // read by the API client

import { keys } from "@/api/keys";
import type { Schedule } from "@/api/types";
import { ScheduleRow } from "./row";

const at = "2026-01-01T00:00:00Z";

function render(role: string, ownerId: string, enabled = true) {
  const client = new QueryClient();
  client.setQueryData(keys.me(), { user: { id: "usr_1", name: "Ada", role }, means: "token:tok_1" });
  const schedule = {
    id: "sch_1",
    projectId: "prj_1",
    ownerId,
    name: "nightly",
    cron: "0 3 * * *",
    timezone: "UTC",
    task: { title: "Tidy up", start: true },
    enabled,
    nextAt: enabled ? at : null,
    lastAt: null,
    lastTaskId: null,
    lastError: null,
    createdAt: at,
    updatedAt: at,
  } as unknown as Schedule;
  const html = renderToStaticMarkup(
    <QueryClientProvider client={client}>
      <Tooltip.Provider>
        <ScheduleRow schedule={schedule} project={undefined} onEdit={() => undefined} />
      </Tooltip.Provider>
    </QueryClientProvider>,
  );
  const isDisabled = (found: RegExp) => / disabled=""/.test(html.match(found)?.[0] ?? "missing");
  return {
    html,
    edit: !isDisabled(/<button[^>]*aria-label="Edit nightly"[^>]*>/),
    toggle: !isDisabled(/<button[^>]*role="switch"[^>]*>/),
    remove: !isDisabled(/<button[^>]*aria-label="Delete nightly"[^>]*>/),
  };
}

it("its creator may do everything", () => {
  expect(render("member", "usr_1")).toMatchObject({ edit: true, toggle: true, remove: true });
  expect(render("member", "usr_1", false)).toMatchObject({ toggle: true });
});

it("an administrator may disable and delete, but not edit or enable it", () => {
  const enabled = render("admin", "usr_2");
  expect(enabled).toMatchObject({ edit: false, toggle: true, remove: true });
  expect(enabled.html).toContain("because its tasks run on their behalf");
  expect(render("admin", "usr_2", false)).toMatchObject({ edit: false, toggle: false, remove: true });
});

it("other members may not change it", () => {
  expect(render("member", "usr_2")).toMatchObject({ edit: false, toggle: false, remove: false });
});
