/** Render pages and panels from cached queries, without a DOM. Import it before everything that it mocks. */
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { createMemoryHistory, RouterProvider } from "@tanstack/react-router";
import { Tooltip } from "radix-ui";
import type { ReactNode } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { beforeEach, expect, vi } from "vitest";

/** What the stubs below return and record. Exported at the end, because it is hoisted. */
const stubs = vi.hoisted(() => {
  vi.stubGlobal("location", { origin: "http://localhost" }); // read by the API client
  vi.stubGlobal("matchMedia", () => ({ matches: true }));
  const stored = new Map<string, string>();
  vi.stubGlobal("localStorage", { getItem: (key: string) => stored.get(key) ?? null });
  return { buttons: new Map<string, () => void>(), transcript: {} as object, stored };
});
vi.mock("react", async (original) => ({
  ...(await original<object>()),
  useSyncExternalStore: <T,>(_: unknown, read: () => T) => read(), // our stores have no snapshot for a server
}));
vi.mock("@tanstack/react-virtual", async (original) => ({
  ...(await original<object>()),
  useVirtualizer: ({ count }: { count: number }) => ({
    getVirtualItems: () => Array.from({ length: count }, (_, index) => ({ index, key: index, start: 0 })),
    getTotalSize: () => 0,
    measurementsCache: [],
  }),
}));
vi.mock("@/ui/button", async (original) => {
  const real = await original<typeof import("@/ui/button")>();
  const Button: typeof real.Button = (props) => {
    const name = renderToStaticMarkup(props.children).replace(/<[^>]*>/g, "");
    if (props.onClick) stubs.buttons.set(name.trim(), props.onClick as () => void);
    return <real.Button {...props} />;
  };
  return { ...real, Button };
});
vi.mock("./features/conversation/use-transcript", () => ({ useTranscript: () => stubs.transcript }));
vi.mock("./shell/layout", async () => ({ Layout: (await import("@tanstack/react-router")).Outlet }));
vi.setConfig({ testTimeout: 60_000 }); // a test takes milliseconds, but some machines are busy

import { ApiError } from "@/api/client";
import { keys } from "@/api/keys";
import { makeRouter } from "./routes";

export const at = "2026-01-01T00:00:00Z";
export const me = {
  user: { id: "usr_1", name: "Ada", role: "admin", createdAt: at },
  means: "token:tok_1",
  hasPassword: true,
};
export const project = {
  id: "prj_1",
  name: "Shop",
  ownerId: "usr_1",
  repository: "https://example.org/shop.git",
  baseBranch: "main",
  connectionError: null,
  archivedAt: null,
  createdAt: at,
  updatedAt: at,
  settings: {},
};
export const task = {
  id: "tsk_1",
  projectId: "prj_1",
  title: "Fix the login",
  description: "It fails after a reload.",
  status: "backlog",
  position: 0,
  priority: 0,
  attempts: [],
  wanted: [],
  blockedBy: [],
  startWhenReady: false,
  startsFor: null,
  startError: null,
  queuePosition: null,
  pullRequest: null,
  agent: null,
  model: null,
  baseBranch: null,
  error: null,
  budget: {},
  source: {},
  createdAt: at,
  updatedAt: at,
  finishedAt: null,
};
export const sandbox = {
  id: "sbx_1",
  title: "Fix the login",
  ownerId: "usr_1",
  projectName: "Shop",
  status: "running",
  template: "base",
  isolation: "gvisor",
  sessionId: "ses_1",
  taskId: null,
  error: null,
  usage: null,
  usedAt: null,
  createdAt: at,
};
export const session = {
  id: "ses_1",
  title: "Fix the login",
  ownerId: "usr_1",
  projectId: null,
  taskId: null,
  agent: "demo",
  model: null,
  mode: null,
  template: "base",
  sandboxId: "sbx_1",
  sandbox,
  checkpointAt: null,
  archivedAt: null,
  createdAt: at,
  updatedAt: at,
};

export let client: QueryClient;
export const requests: string[] = [];

export function makeTestRouter(path: string) {
  const router = makeRouter(client);
  router.update({ ...router.options, history: createMemoryHistory({ initialEntries: [path] }) });
  return router;
}

export const render = (node: ReactNode) =>
  renderToStaticMarkup(
    <QueryClientProvider client={client}>
      <Tooltip.Provider>{node}</Tooltip.Provider>
    </QueryClientProvider>,
  );

/** Open a page. Return its HTML and its router. */
export async function visit(path: string) {
  const router = makeTestRouter(path);
  await router.load();
  return { html: render(<RouterProvider router={router} />), router };
}

export const open = async (path: string) => (await visit(path)).html;

/** Let a query fail. */
export const fail = (queryKey: readonly unknown[], status = 500) =>
  client.prefetchQuery({
    queryKey,
    queryFn: () => Promise.reject(new ApiError(status, { detail: "The database is full." })),
    retry: false,
  });

/** Click a button of the last rendered page. */
export async function press(name: string) {
  const click = stubs.buttons.get(name);
  expect(click, `a button ${name} among ${[...stubs.buttons.keys()].join(", ")}`).toBeDefined();
  click?.();
  await new Promise((resolve) => setTimeout(resolve));
}

beforeEach(() => {
  requests.length = 0;
  stubs.buttons.clear();
  stubs.stored.clear();
  vi.stubGlobal("fetch", (request: Request) => {
    requests.push(`${request.method} ${request.url.replace("http://localhost", "")}`);
    return new Promise(() => undefined); // no test waits for a response
  });
  client = new QueryClient({ defaultOptions: { queries: { retryOnMount: false } } });
  client.setQueryData(keys.me(), me);
  client.setQueryData(keys.projects(), [project]);
});

export { stubs };
