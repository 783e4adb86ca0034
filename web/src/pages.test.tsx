/** The main pages, rendered from cached queries. Without a DOM: events and effects are covered by tests/web in a real browser. */
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { createMemoryHistory, RouterContextProvider, RouterProvider } from "@tanstack/react-router";
import { Tooltip } from "radix-ui";
import type { ReactNode } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { beforeEach, describe, expect, it, vi } from "vitest";

/** What the stubs below return and record. */
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
import type { Agent, Ask, FileDiff, Session, Task } from "@/api/types";
import { AgentRow } from "@/features/agents/row";
import { AttemptsPanel } from "@/features/attempts/panel";
import { FileHead, FileNote, HunkHead } from "@/features/changes/diff-file";
import { SplitLine, UnifiedLine } from "@/features/changes/diff-line";
import { FileTree } from "@/features/changes/file-tree";
import { ChangesPanel } from "@/features/changes/panel";
import { AskRow } from "@/features/conversation/ask";
import { ConversationPanel } from "@/features/conversation/panel";
import { useDraft } from "@/features/conversation/prompt-draft";
import { PullPanel } from "@/features/pulls/panel";
import { SandboxPanel } from "@/features/sandboxes/panel";
import { Progress } from "@/features/welcome/progress";
import type { Token } from "@/lib/highlight";
import { parsePatch } from "@/model/patch";
import { makeRouter } from "./routes";
// the router loads pages on demand: load them before the first test
import "./features/board/page";
import "./features/projects/page";
import "./features/projects/project-page";
import "./features/sandboxes/page";
import "./features/sessions/session-page";
import "./features/settings/page";
import "./features/sign-in/page";
import "./features/tasks/page";
import "./features/welcome/page";

const at = "2026-01-01T00:00:00Z";
const me = {
  user: { id: "usr_1", name: "Ada", role: "admin", createdAt: at },
  means: "token:tok_1",
  hasPassword: true,
};
const project = {
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
const task = {
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
const sandbox = {
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
const session = {
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

let client: QueryClient;
const requests: string[] = [];

function makeTestRouter(path: string) {
  const router = makeRouter(client);
  router.update({ ...router.options, history: createMemoryHistory({ initialEntries: [path] }) });
  return router;
}

const render = (node: ReactNode) =>
  renderToStaticMarkup(
    <QueryClientProvider client={client}>
      <Tooltip.Provider>{node}</Tooltip.Provider>
    </QueryClientProvider>,
  );

/** Open a page. Return its HTML and its router. */
async function visit(path: string) {
  const router = makeTestRouter(path);
  await router.load();
  return { html: render(<RouterProvider router={router} />), router };
}

const open = async (path: string) => (await visit(path)).html;

/** Let a query fail. */
const fail = (queryKey: readonly unknown[], status = 500) =>
  client.prefetchQuery({
    queryKey,
    queryFn: () => Promise.reject(new ApiError(status, { detail: "The database is full." })),
    retry: false,
  });

/** Click a button of the last rendered page. */
async function press(name: string) {
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

describe("board", () => {
  const key = keys.board({ projectId: null, q: null, agent: null, show: null });
  const none = { total: 0, matching: 0, failed: 0 };
  const counts = { backlog: none, in_progress: none, in_review: none, done: none, cancelled: none };

  it("is loading until it was read", async () => {
    expect(await open("/board")).toContain('aria-label="Loading board"');
  });

  it("shows cards in their columns", async () => {
    client.setQueryData(key, {
      items: [task],
      counts: { ...counts, backlog: { total: 1, matching: 1, failed: 0 } },
      titles: {},
    });
    const html = await open("/board");
    expect(html).toMatch(/data-column="backlog".*Fix the login.*data-column="in_progress"/);
  });

  it("counts active and failed cards separately, and shows no check as passed on a failed card", async () => {
    const attempt = { id: "att_1", number: 1, sessionId: "ses_1", sandboxId: null, agent: "demo", model: null };
    const spent = { calls: 0, costUsd: 0, unpriced: 0, estimated: 0 };
    const card = (id: string, status: string, changes: object) => ({
      ...task,
      id,
      status: "in_progress",
      attempts: [{ ...attempt, status, round: 1, seconds: null, spent, ...changes }],
    });
    const running = card("tsk_1", "running", { verified: null });
    const failed = { ...card("tsk_2", "failed", { verified: true }), error: "The agent changed nothing." };
    const show = (...items: object[]) => {
      const count = { total: items.length, matching: items.length, failed: items.includes(failed) ? 1 : 0 };
      client.setQueryData(key, { items, counts: { ...counts, in_progress: count }, titles: {} });
      return open("/board");
    };
    expect(await show(running)).toMatch(/In progress<\/h2><span[^>]*>1<\/span>/);
    expect(await show(failed)).toMatch(/In progress<\/h2><span[^>]*>0 active<\/span><span[^>]*>1 failed/);
    const html = await show(running, failed);
    expect(html).toMatch(/In progress<\/h2><span[^>]*>1 active<\/span><span[^>]*>1 failed/);
    expect(html).toContain("The agent changed nothing.");
    expect(html).not.toContain("Verified");
    expect(
      await show({
        ...failed,
        error: null,
        status: "in_review",
        attempts: [{ ...failed.attempts[0], status: "in_review" }],
      }),
    ).toContain("Verified");
  });

  it("explains how to begin if there is no task, or no project", async () => {
    client.setQueryData(key, { items: [], counts, titles: {} });
    expect(await open("/board")).toMatch(/No tasks yet.*Create your first task/);
    client.setQueryData(keys.projects(), []);
    expect(await open("/board")).toContain("Welcome to Sandyard");
  });

  it("shows why it could not be read", async () => {
    await fail(key);
    expect(await open("/board")).toMatch(/role="alert".*The database is full\..*Retry/);
  });

  it("opens the form for a new task", async () => {
    const { router } = await visit("/board");
    const navigate = vi.spyOn(router, "navigate"); // without a DOM, the router does not navigate
    await press("New task");
    expect(navigate).toHaveBeenCalledOnce();
    expect(router.buildLocation(navigate.mock.lastCall?.[0] ?? {}).href).toBe("/board?new=true");
  });
});

describe("task page", () => {
  it("is loading until the task was read", async () => {
    expect(await open("/tasks/tsk_1")).toContain('role="status"');
  });

  it("shows a task that was not started", async () => {
    client.setQueryData(keys.task("tsk_1"), { ...task, description: "" });
    expect(await open("/tasks/tsk_1")).toMatch(/Fix the login.*No description\..*Project default/);
  });

  it("shows why the task could not be read, or that it does not exist", async () => {
    await fail(keys.task("tsk_1"));
    expect(await open("/tasks/tsk_1")).toMatch(/role="alert".*The database is full\./);
    await fail(keys.task("tsk_2"), 404);
    expect(await open("/tasks/tsk_2")).toContain("Task not found");
  });

  it("shows the agent with its title", async () => {
    const spent = { calls: 0, costUsd: 0, unpriced: 0, estimated: 0 };
    const attempt = { id: "att_1", number: 1, sessionId: "ses_1", sandboxId: null, status: "running", step: "setup" };
    const attempts = [{ ...attempt, agent: "opencode", model: null, round: 1, seconds: null, spent }];
    client.setQueryData(keys.task("tsk_1"), { ...task, status: "in_progress", attempts });
    client.setQueryData(keys.agents(), [{ name: "opencode", title: "OpenCode", demo: false }]);
    const html = await open("/tasks/tsk_1");
    expect(html).toContain("OpenCode");
    expect(html).not.toContain(">opencode");
  });

  it("does not call a failed attempt verified", () => {
    const spent = { calls: 0, inputTokens: 0, outputTokens: 0, costUsd: 0, unpriced: 0, estimated: 0 };
    const attempt = { id: "att_1", number: 1, sessionId: "ses_1", sandboxId: null, agent: "demo", model: null, spent };
    const show = (status: string, verified: boolean) => {
      const attempts = [{ ...attempt, status, verified, steps: [], round: 1, seconds: null }];
      return render(
        <RouterContextProvider router={makeTestRouter("/tasks/tsk_1")}>
          <AttemptsPanel task={{ ...task, attempts } as unknown as Task} />
        </RouterContextProvider>,
      );
    };
    expect(show("ready", true)).toMatch(/Verified.*Verify command passed/);
    expect(show("failed", false)).toMatch(/Verified.*Verify command failed/);
    expect(show("failed", true)).not.toMatch(/Verified|Verify command passed/);
  });

  it("starts the task", async () => {
    client.setQueryData(keys.task("tsk_1"), task);
    await open("/tasks/tsk_1");
    await press("Start");
    expect(requests).toEqual(["POST /api/v1/tasks/tsk_1/move"]);
  });
});

describe("session page", () => {
  it("is loading until the session was read", async () => {
    expect(await open("/sessions/ses_1")).toContain('role="status"');
  });

  it("shows the session and its tabs", async () => {
    client.setQueryData(keys.session("ses_1"), session);
    expect(await open("/sessions/ses_1")).toMatch(/Fix the login.*Running.*demo.*Terminal/);
    client.setQueryData(keys.agents(), [{ name: "demo", title: "Demo agent", demo: true }]);
    expect(await open("/sessions/ses_1")).toMatch(/Fix the login.*Running.*Demo agent.*Terminal/);
  });

  it("has its menu beside the title, before the facts that wrap on a phone", async () => {
    client.setQueryData(keys.session("ses_1"), session);
    expect(await open("/sessions/ses_1")).toMatch(
      /<\/h1>.*sm:order-last.*Actions for Fix the login.*max-sm:w-full.*Running/,
    );
  });

  it("does not ask about the changes while the checkout is being made", async () => {
    const createdAt = new Date().toISOString();
    const made = { ...session, projectId: "prj_1", sandbox: { ...sandbox, createdAt } };
    client.setQueryData(keys.session("ses_1"), made);
    await open("/sessions/ses_1?tab=changes"); // loads the panels
    const operation = { id: "gop_1", kind: "clone", status: "running", position: null, detail: {} };
    client.setQueryData(keys.gitOperations("sbx_1"), [operation]);
    expect(await open("/sessions/ses_1?tab=changes")).toContain("No checkout yet");
    client.setQueryData(keys.gitOperations("sbx_1"), [{ ...operation, status: "completed" }]);
    expect(await open("/sessions/ses_1?tab=changes")).not.toContain("No checkout yet");
  });

  it("shows why the session could not be read, or that it does not exist", async () => {
    await fail(keys.session("ses_1"));
    expect(await open("/sessions/ses_1")).toMatch(/role="alert".*The database is full\./);
    await fail(keys.session("ses_2"), 404);
    expect(await open("/sessions/ses_2")).toContain("Session not found");
  });
});

describe("changes", () => {
  const checkout = { branch: "task/fix", baseBranch: "main", pushed: "c1", head: "c2" };
  const status = { live: false, asOf: at, branch: "task/fix", head: "c2", ahead: 1, entries: [], underWay: null };
  const file = {
    path: "a.py",
    oldPath: null,
    change: "modified",
    added: 1,
    removed: 0,
    binary: false,
    truncated: false,
  };
  const diff = {
    files: [{ ...file, patch: "@@ -0,0 +1,1 @@\n+x = 1\n", oldMode: null, newMode: null }],
    added: 1,
    removed: 0,
  };
  const show = (gone: boolean) => {
    client.setQueryData(keys.checkout("sbx_1"), checkout);
    client.setQueryData(keys.gitStatus("sbx_1"), status);
    client.setQueryData(keys.diff("sbx_1", "base"), diff);
    const shown = { ...session, sandbox: { ...sandbox, status: gone ? "destroyed" : "paused" } } as unknown as Session;
    return render(
      <RouterContextProvider router={makeTestRouter("/sessions/ses_1")}>
        <ChangesPanel sandboxId="sbx_1" session={shown} gone={gone} />
      </RouterContextProvider>,
    );
  };

  it("can be updated, pushed and commented on only while there is a sandbox", () => {
    const html = show(false);
    expect(html).not.toContain("The sandbox is gone");
    expect(html).toContain("Comment on line 1");
    const gone = show(true);
    expect(gone).toMatch(/<button(?=[^>]*disabled)(?=[^>]*title="The sandbox is gone\.)[^>]*>Update/);
    expect(gone).toContain("Start a new sandbox to change or comment on them.");
    expect(gone).not.toContain("Comment on line 1");
  });
});

describe("conversation", () => {
  const reading = { messages: [], more: false, state: "ready", reaching: false, error: null, retry: () => undefined };
  const message = { sessionId: "ses_1", turnId: null, authorId: "usr_1", createdAt: at };
  const show = (transcript: object) => {
    stubs.transcript = { ...reading, ...transcript };
    return render(
      <RouterContextProvider router={makeTestRouter("/sessions/ses_1")}>
        <ConversationPanel sessionId="ses_1" />
      </RouterContextProvider>,
    );
  };

  beforeEach(() => {
    client.setQueryData(keys.session("ses_1"), session);
  });

  it("is loading until the messages were read", () => {
    expect(show({ state: "loading" })).toContain('role="status"');
  });

  it("shows messages", () => {
    const text = (id: string, role: string, words: string) => ({
      ...message,
      id,
      role,
      parts: [{ type: "text", text: words }],
    });
    const html = show({ messages: [text("msg_1", "user", "Fix it."), text("msg_2", "agent", "It works again.")] });
    expect(html).toMatch(/Fix it\..*It works again\./);
  });

  it("asks for a first message", () => {
    expect(show({})).toMatch(/No messages yet.*aria-label="Message to the agent"/);
  });

  it("shows why the messages could not be read", () => {
    const error = new ApiError(500, { detail: "The database is full." });
    expect(show({ state: "failed", error })).toMatch(/role="alert".*The database is full\..*Retry/);
  });

  it("cannot send an empty message", () => {
    const send = /<button type="submit"([^>]*)>/;
    expect(send.exec(show({}))?.[1]).toContain("disabled");
  });
});

it("marks agents that are ready", () => {
  const agent = { name: "demo", title: "Demo agent", demo: true, builtIn: true, modelReady: true };
  const lists = { apis: [], modes: [], models: [], modelProjects: [] };
  const show = (changes: object = {}) =>
    render(
      <RouterContextProvider router={makeTestRouter("/agents")}>
        <AgentRow
          agent={{ ...agent, ...lists, ...changes } as unknown as Agent}
          mayChange={false}
          onEdit={() => undefined}
        />
      </RouterContextProvider>,
    );
  expect(show()).toMatch(/>Ready<.*Demo: no model/);
  expect(show()).not.toContain("text-warn");
  expect(show({ modelReady: false })).toMatch(/^(?!.*>Ready<).*Needs a key/);
  expect(show({ modelReady: false, modelProjects: ["prj_1"] })).not.toMatch(/>Ready<|Needs a key/);
});

describe("pull request", () => {
  const remark = { kind: "comment", id: "1", author: "ada", text: "Why twice?", at, state: null, path: null };
  const pull = {
    id: "pul_1",
    projectId: "prj_1",
    number: 7,
    title: "Fix the login",
    url: "https://github.com/acme/shop/pull/7",
    state: "open",
    draft: false,
    checks: "none",
    review: "none",
    mergeable: true,
    headBranch: "sandyard/fix",
    baseBranch: "main",
    detail: { remarks: [] as object[] },
    updatedAt: at,
  };
  const show = (changes: object = {}) => {
    client.setQueryData(keys.pullRequest("ses_1", "tsk_1"), { ...pull, ...changes });
    client.setQueryData(keys.project("prj_1"), { ...project, settings: { tasks: { mention: "@robot" } } });
    return render(
      <RouterContextProvider router={makeTestRouter("/tasks/tsk_1")}>
        <PullPanel sessionId="ses_1" sandboxId="sbx_1" projectId="prj_1" taskId="tsk_1" />
      </RouterContextProvider>,
    );
  };

  it("says which comments are sent to the agent", () => {
    const html = show();
    expect(html).toContain("comments that mention @robot, are sent to the agent if their author has write access");
    expect(html).toContain("No reviews or comments yet.<");
  });

  it("quotes a comment in a message to the agent", async () => {
    const Draft = () => useDraft("ses_1")[0];
    expect(show({ detail: { remarks: [remark] } })).toContain("Why twice?");
    vi.stubGlobal("document", { querySelector: () => null });
    await press("Quote in a message").finally(() => vi.stubGlobal("document", undefined));
    expect(render(<Draft />)).toBe("ada wrote on the pull request:\n\n&gt; Why twice?");
    expect(show({ state: "merged", detail: { remarks: [remark] } })).not.toContain("Quote in a message");
  });
});

describe("hidden characters", () => {
  const shown = (node: ReactNode) => render(node).replace(/<[^>]*>/g, "");
  const file = {
    path: "src/a\u202eb.ts",
    oldPath: "old\u200b.ts",
    change: "renamed",
    added: 1,
    removed: 0,
    binary: false,
    patch: "@@ -0,0 +1,1 @@ f\u2066()\n+if (x\u202e) {\n",
    truncated: false,
    oldMode: "100644",
    newMode: "100644",
  } satisfies FileDiff;

  it("are visible in a diff and in the names of its files", () => {
    const [hunk] = parsePatch(file.patch).hunks;
    if (!hunk) throw new Error("The patch has no hunk.");
    const head = shown(<FileHead file={file} folded={false} onFold={() => undefined} onViewed={() => undefined} />);
    expect(head).toContain("old⟨U+200B⟩.ts → src/a⟨U+202E⟩b.ts");
    expect(shown(<HunkHead hunk={hunk} />)).toContain("f⟨U+2066⟩()");
    expect(shown(<UnifiedLine hunk={hunk} at={0} tokens={undefined} chosen={false} />)).toContain("if (x⟨U+202E⟩) {");
    const half = {
      at: 0,
      tokens: [
        ["keyword", "if"],
        ["", " (x\u202e) {"],
      ] as Token[],
      chosen: false,
    };
    expect(shown(<SplitLine hunk={hunk} left={{ ...half, at: -1 }} right={half} />)).toContain("if (x⟨U+202E⟩) {");
    const none = new Set<string>();
    const tree = (
      <FileTree files={[file]} current={undefined} onChoose={() => undefined} viewed={none} commented={none} />
    );
    expect(render(tree)).toContain('title="src/a⟨U+202E⟩b.ts"');
    expect(shown(tree)).toContain("a⟨U+202E⟩b.ts");
    expect(shown(<FileNote note="hidden" file={file} loading={false} />)).toBe(
      "Contains invisible or direction-changing characters.",
    );
  });

  it("are visible in permission requests and questions", () => {
    const ask = {
      id: "ask_1",
      sessionId: "ses_1",
      kind: "permission",
      status: "pending",
      title: "Run\u200b it",
      detail: {
        options: [{ optionId: "yes", name: "Allow\u200f", kind: "allow_once" }],
        toolCall: {
          kind: "execute",
          rawInput: { command: "echo \u202ehi" },
          content: [
            { type: "diff", path: "a\u00ad.py", oldText: null, newText: "x\u2060 = 1" },
            { type: "text", text: "See\u200b this" },
          ],
        },
      },
    } as unknown as Ask;
    const html = render(<AskRow ask={ask} />);
    const text = html.replace(/<[^>]*>/g, "");
    expect(html).toContain('aria-label="Run⟨U+200B⟩ it"');
    for (const part of [
      "Run⟨U+200B⟩ it",
      "Allow⟨U+200F⟩",
      "echo ⟨U+202E⟩hi",
      "a⟨U+00AD⟩.py",
      "x⟨U+2060⟩ = 1",
      "See⟨U+200B⟩",
    ]) {
      expect(text).toContain(part);
    }
    expect(html).not.toMatch(/[\u200b\u200f\u202e\u00ad\u2060]/);
    const question = { ...ask, kind: "question", detail: { form: { properties: { a: { title: "Why\u200b" } } } } };
    expect(shown(<AskRow ask={question as unknown as Ask} />)).toContain("Why⟨U+200B⟩");
  });
});

describe("sandboxes", () => {
  const key = keys.sandboxes({ status: null, all: false });
  const pages = (items: object[], nextCursor: string | null = null) => ({
    pages: [{ items, nextCursor }],
    pageParams: [undefined],
  });

  it("are loading until they were read", async () => {
    expect(await open("/sandboxes")).toContain('role="status"');
  });

  it("are listed with their status and session", async () => {
    client.setQueryData(key, pages([sandbox]));
    const html = await open("/sandboxes");
    expect(html).toMatch(/aria-label="Select Fix the login".*Running.*Shop.*gVisor.*href="\/sessions\/ses_1"/);
  });

  it("show their isolation level in their details, if it is known", () => {
    const show = (isolation: string | null) => {
      client.setQueryData(keys.sandbox("sbx_1"), { ...sandbox, isolation, sessionId: null });
      return render(
        <RouterContextProvider router={makeTestRouter("/sandboxes/sbx_1")}>
          <SandboxPanel sandboxId="sbx_1" />
        </RouterContextProvider>,
      );
    };
    expect(show("gvisor")).toMatch(/Details.*Isolation.*gVisor/);
    expect(show("namespace")).toMatch(/Details.*Isolation.*Namespaces/);
    expect(show("microvm")).toMatch(/Details.*Isolation.*microvm/);
    expect(show(null)).not.toContain("Isolation");
  });

  it("are explained if there are none", async () => {
    client.setQueryData(key, pages([]));
    expect(await open("/sandboxes")).toContain("No sandboxes");
  });

  it("show why they could not be read", async () => {
    await fail(key);
    expect(await open("/sandboxes")).toMatch(/role="alert".*The database is full\./);
  });

  it("are loaded page by page", async () => {
    client.setQueryData(key, pages([sandbox], "sbx_1"));
    await open("/sandboxes");
    await press("Show more");
    expect(requests).toEqual(["GET /api/v1/sandboxes?all=false&limit=100&cursor=sbx_1"]);
  });
});

describe("projects", () => {
  it("are loading until they were read", async () => {
    client.removeQueries({ queryKey: keys.projects() });
    expect(await open("/projects")).toContain('role="status"');
  });

  it("are listed with their repository and settings", async () => {
    const html = await open("/projects");
    expect(html).toMatch(/Shop.*https:\/\/example\.org\/shop\.git.*aria-label="Settings for Shop"/);
  });

  it("begin with a repository, or with the sample", async () => {
    client.setQueryData(keys.projects(), []);
    expect(await open("/projects")).toMatch(/No projects yet.*Add a repository/);
    const sample = [...stubs.buttons.keys()].find((name) => /sample/i.test(name)) ?? "sample";
    await press(sample);
    expect(requests).toEqual(["POST /api/v1/projects/sample"]);
  });

  it("show why they could not be read", async () => {
    client.removeQueries({ queryKey: keys.projects() });
    await fail(keys.projects());
    expect(await open("/projects")).toMatch(/role="alert".*The database is full\./);
  });
});

describe("project settings", () => {
  it("are loading until the project was read", async () => {
    expect(await open("/projects/prj_1")).toContain('role="status"');
  });

  it("show the project in a form", async () => {
    client.setQueryData(keys.project("prj_1"), project);
    expect(await open("/projects/prj_1")).toMatch(/value="Shop".*value="https:\/\/example\.org\/shop\.git"/);
  });

  it("show why the project could not be read", async () => {
    await fail(keys.project("prj_1"));
    expect(await open("/projects/prj_1")).toMatch(/role="alert".*The database is full\./);
  });

  it("say what the command policy covers, and where the permissions of agents are", async () => {
    const settings = { commandPolicy: { allow: [], deny: [] } };
    client.setQueryData(keys.project("prj_1"), { ...project, settings });
    expect(await open("/projects/prj_1?tab=policy")).toMatch(
      /Does not apply to commands that agents run \(see <a [^>]*href="\/projects\/prj_1\?tab=agent"[^>]*>Agent permissions/,
    );
  });

  it("say what happens if the server does not support the isolation level", async () => {
    client.setQueryData(keys.project("prj_1"), { ...project, settings: { setup: {}, verify: {} } });
    expect(await open("/projects/prj_1?tab=setup")).toMatch(/they fail to start.*sandyard doctor.*on the server/);
  });

  it("archive the project", async () => {
    client.setQueryData(keys.project("prj_1"), project);
    await open("/projects/prj_1");
    await press("Archive");
    expect(requests).toHaveLength(1);
  });
});

describe("settings", () => {
  it("show the profile first, and people only to administrators", async () => {
    expect(await open("/settings")).toMatch(/People.*value="Ada".*Administrator/);
    client.setQueryData(keys.me(), { ...me, user: { ...me.user, role: "member" } });
    const html = await open("/settings?tab=people");
    expect(html).not.toContain("People");
    expect(html).toContain("Member");
  });

  it("show people also under the API's word for them", async () => {
    expect(await open("/settings?tab=users")).toContain("Everyone with an account on this server.");
  });
});

describe("sign-in page", () => {
  it("asks for name and password, unless a token was last used in this browser", async () => {
    const html = await open("/sign-in");
    expect(html).toMatch(/>Name<.*>Password<.*Sign in with a token instead/);
    stubs.stored.set("sandyard.sign-in", "token");
    expect(await open("/sign-in")).toMatch(/>Token<.*Sign in with name and password instead/);
  });
});

describe("welcome page", () => {
  it("offers the sample, the user's own repository and existing projects", async () => {
    const html = await open("/welcome");
    expect(html).toMatch(/aria-current="step".*Repository.*Try the sample.*Test and add.*Shop/);
    expect(html).not.toContain("Set a password");
  });

  it("offers no existing projects if there are none or they could not be read", async () => {
    client.setQueryData(keys.projects(), []);
    expect(await open("/welcome")).not.toContain("existing project");
    client.removeQueries({ queryKey: keys.projects() });
    await fail(keys.projects());
    expect(await open("/welcome")).toMatch(/Try the sample/);
  });

  it("tells members without a project that somebody has to add them, and offers them no paths", async () => {
    const toAdd = "ask its owner or an administrator to add you";
    client.setQueryData(keys.projects(), []);
    const ofAdmin = await open("/welcome");
    expect(ofAdmin).not.toContain(toAdd);
    expect(ofAdmin).toContain("a path on the server");
    client.setQueryData(keys.me(), { ...me, user: { ...me.user, role: "member" } });
    const ofMember = await open("/welcome");
    expect(ofMember).toContain(toAdd);
    expect(ofMember).not.toContain("a path on the server");
    client.setQueryData(keys.projects(), [project]);
    expect(await open("/welcome")).not.toContain(toAdd);
  });

  it("suggests a password to those who signed in with a token", async () => {
    client.setQueryData(keys.me(), { ...me, hasPassword: false });
    expect(await open("/welcome")).toContain("Set a password");
  });

  it("creates the sample project", async () => {
    await open("/welcome");
    await press("Use the sample repository");
    expect(requests).toEqual(["POST /api/v1/projects/sample"]);
  });

  it("shows the agent's question, to be answered there", () => {
    const attempt = { id: "att_1", sessionId: "ses_1", status: "running", step: "agent", agent: "demo", seconds: null };
    client.setQueryData(keys.task("tsk_1"), { ...task, status: "in_progress", attempts: [attempt] });
    const show = () =>
      render(
        <RouterContextProvider router={makeTestRouter("/welcome")}>
          <Progress taskId="tsk_1" onRestart={() => undefined} />
        </RouterContextProvider>,
      );
    expect(show()).toMatch(/Running.*Agent working…/);
    const ask = { id: "ask_1", kind: "question", status: "pending", title: "Which motto?", detail: { form: {} } };
    client.setQueryData(keys.pendingAsks(), [{ ...ask, sessionId: "ses_2" }]);
    expect(show()).not.toContain("Which motto?");
    client.setQueryData(keys.pendingAsks(), [{ ...ask, sessionId: "ses_1" }]);
    const html = show();
    expect(html).toMatch(/Needs you.*The agent has a question\..*Which motto\?.*<button[^>]*>Answer/);
    expect(html).not.toContain("Agent working");
  });
});
