/** The panels of the main pages, rendered alone from cached queries. */
import { at, client, makeTestRouter, open, press, project, render, sandbox, session, stubs } from "./test-support";

// test-support mocks modules: it has to come first

import { RouterContextProvider } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { beforeEach, describe, expect, it, vi } from "vitest";
import { ApiError } from "@/api/client";
import { keys } from "@/api/keys";
import type { Agent, Ask, FileDiff, Session } from "@/api/types";
import { AgentRow } from "@/features/agents/row";
import { FileHead, FileNote, HunkHead } from "@/features/changes/diff-file";
import { SplitLine, UnifiedLine } from "@/features/changes/diff-line";
import { FileTree } from "@/features/changes/file-tree";
import { ChangesPanel } from "@/features/changes/panel";
import { AskRow } from "@/features/conversation/ask";
import { ConversationPanel } from "@/features/conversation/panel";
import { useDraft } from "@/features/conversation/prompt-draft";
import { ProviderForm } from "@/features/models/provider-form";
import { PullPanel } from "@/features/pulls/panel";
import type { Token } from "@/lib/highlight";
import { parsePatch } from "@/model/patch";

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

  it("warns if the agent has no key, before a message is sent", () => {
    const codex = { name: "codex", title: "Codex", modelReady: false, modelProjects: [], apis: ["openai"] };
    client.setQueryData(keys.session("ses_1"), { ...session, agent: "codex" });
    client.setQueryData(keys.agents(), [{ ...codex, modes: [], unaskedModes: [], models: [] }]);
    expect(show({})).toMatch(/Codex has no key for its model.*Add key.*aria-label="Message to the agent"/s);
    client.setQueryData(keys.agents(), [{ ...codex, modelReady: true, modes: [], unaskedModes: [], models: [] }]);
    expect(show({})).not.toContain("has no key");
  });

  it("cannot send an empty message", () => {
    const send = /<button type="submit"([^>]*)>/;
    expect(send.exec(show({}))?.[1]).toContain("disabled");
  });
});

it("chooses no provider for the user, and fills in nothing", () => {
  client.setQueryData(keys.modelPresets(), {
    items: [{ name: "anthropic", title: "Anthropic", baseUrl: "https://api.anthropic.com", models: [], agents: [] }],
  });
  const html = render(<ProviderForm provider={undefined} projectId={undefined} onDone={() => undefined} />);
  expect(html).toContain("Choose a provider");
  expect(html).not.toContain(">Other<");
});

it.each([
  ["/schedules", "New schedule", () => client.setQueryData(keys.schedules(undefined), [])],
  ["/sessions", "New session", () => client.setQueryData(keys.sessions(undefined, false), [])],
])("offers to create the first item of %s once", async (path, name, empty) => {
  empty();
  const html = await open(path);
  expect(html.match(new RegExp(`<button[^>]*>(?:<svg.*?</svg>)? ?${name}`, "g"))).toHaveLength(1);
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
