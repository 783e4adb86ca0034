/** The main pages, rendered from cached queries. Without a DOM: events and effects are covered by tests/web in a real browser. */
import {
  client,
  fail,
  makeTestRouter,
  me,
  open,
  press,
  project,
  render,
  requests,
  sandbox,
  session,
  stubs,
  task,
  visit,
} from "./test-support";

// test-support mocks modules: it has to come first

import { RouterContextProvider } from "@tanstack/react-router";
import { describe, expect, it, vi } from "vitest";
import { keys } from "@/api/keys";
import type { Task } from "@/api/types";
import { AttemptsPanel } from "@/features/attempts/panel";
import { KnownRepository } from "@/features/projects/known-repository";
import { TokenHelp } from "@/features/projects/token-help";
import { SandboxPanel } from "@/features/sandboxes/panel";
import { AgentStep } from "@/features/welcome/agent-step";
import { Progress } from "@/features/welcome/progress";
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
    const attempt = { id: "att_1", number: 1, sessionId: null, sandboxId: null, agent: "demo", model: null };
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
    const attempt = { id: "att_1", number: 1, sessionId: null, sandboxId: null, status: "running", step: "setup" };
    const attempts = [{ ...attempt, agent: "opencode", model: null, round: 1, seconds: null, spent }];
    client.setQueryData(keys.task("tsk_1"), { ...task, status: "in_progress", attempts });
    client.setQueryData(keys.agents(), [{ name: "opencode", title: "OpenCode", demo: false }]);
    const html = await open("/tasks/tsk_1");
    expect(html).toContain("OpenCode");
    expect(html).not.toContain(">opencode");
  });

  it("does not call a failed attempt verified", () => {
    const spent = { calls: 0, inputTokens: 0, outputTokens: 0, costUsd: 0, unpriced: 0, estimated: 0 };
    const attempt = { id: "att_1", number: 1, sessionId: null, sandboxId: null, agent: "demo", model: null, spent };
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

  const showProgress = () =>
    render(
      <RouterContextProvider router={makeTestRouter("/welcome")}>
        <Progress taskId="tsk_1" onRestart={() => undefined} />
      </RouterContextProvider>,
    );

  it("shows the agent's question, to be answered there", () => {
    const attempt = { id: "att_1", sessionId: "ses_1", status: "running", step: "agent", agent: "demo", seconds: null };
    client.setQueryData(keys.task("tsk_1"), { ...task, status: "in_progress", attempts: [attempt] });
    expect(showProgress()).toMatch(/Running.*Agent working…/);
    const ask = { id: "ask_1", kind: "question", status: "pending", title: "Which motto?", detail: { form: {} } };
    client.setQueryData(keys.pendingAsks(), [{ ...ask, sessionId: "ses_2" }]);
    expect(showProgress()).not.toContain("Which motto?");
    client.setQueryData(keys.pendingAsks(), [{ ...ask, sessionId: "ses_1" }]);
    const html = showProgress();
    expect(html).toMatch(/Needs you.*The agent has a question\..*Which motto\?.*<button[^>]*>Answer/);
    expect(html).not.toContain("Agent working");
  });

  it("says that nothing has checked the work, if the project has no verify command", () => {
    const attempt = { id: "att_1", sessionId: "ses_1", status: "in_review", step: null, agent: "demo", seconds: 9 };
    const pull = { number: 1, url: "https://github.com/a/b/pull/1", forge: "github", headBranch: "task/fix" };
    const show = (verification: object | null) => {
      const attempts = [{ ...attempt, verification }];
      client.setQueryData(keys.task("tsk_1"), { ...task, status: "in_review", pullRequest: pull, attempts });
      return showProgress();
    };
    expect(show(null)).toMatch(/Pull request #1 is open.*No command has checked this work.*Set a verify command/);
    expect(show({ ok: true, command: "make test" })).not.toContain("Set a verify command");
  });

  it("offers the project that has the repository already", () => {
    const show = (repository: string) => render(<KnownRepository repository={repository} onUse={vi.fn()} />);
    expect(show("https://example.org/shop")).toMatch(
      /The project Shop has this repository already.*<button[^>]*>Use Shop/,
    );
    expect(show("https://example.org/other")).toBe("");
  });

  it("says where to create a token for GitHub, and which permissions it needs", () => {
    const ofGitHub = render(<TokenHelp repository="https://GitHub.com/you/project" />);
    expect(ofGitHub).toMatch(
      /href="https:\/\/github\.com\/settings\/personal-access-tokens\/new".*Contents and Pull requests/,
    );
    for (const other of ["", "/srv/project", "https://git.example.org/you/project"])
      expect(render(<TokenHelp repository={other} />)).toBe("");
  });

  it("shows that the choice of an agent is being saved", () => {
    client.setQueryData(keys.agents(), []);
    const show = (busy: boolean) =>
      render(
        <AgentStep agent="demo" projectId="prj_1" busy={busy} onAgent={vi.fn()} onBack={vi.fn()} onDone={vi.fn()} />,
      );
    expect(show(true)).toMatch(/<button[^>]*(disabled|aria-busy)[^>]*>.*Continue/);
    expect(show(false)).not.toMatch(/aria-busy|disabled=""/);
  });
});
