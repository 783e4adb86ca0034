/** The lists of the settings pages, rendered from cached queries. */
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { Tooltip } from "radix-ui";
import type { ReactNode } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { beforeEach, describe, expect, it, vi } from "vitest";

const stubs = vi.hoisted(() => {
  vi.stubGlobal("location", { origin: "http://localhost" }); // read by the API client
  return { onUserCreated: (_: object) => undefined as unknown, success: [] as unknown[][] };
});
vi.mock("@/api/queries/users", async (original) => {
  const real = await original<typeof import("@/api/queries/users")>();
  const useCreateUser: typeof real.useCreateUser = (callbacks) => {
    stubs.onUserCreated = callbacks?.onSuccess as typeof stubs.onUserCreated;
    return real.useCreateUser(callbacks);
  };
  return { ...real, useCreateUser };
});
vi.mock("@/ui/toast", async (original) => ({
  ...(await original<object>()),
  toast: { success: (...shown: unknown[]) => stubs.success.push(shown) },
}));

import { keys } from "@/api/keys";
import { McpServers } from "@/features/mcp/servers";
import { SecretList } from "@/features/secrets/list";
import { People, UserForm } from "./people";
import { Tokens } from "./tokens";

const at = "2026-01-01T00:00:00Z";
const me = { user: { id: "usr_1", name: "Ada", role: "admin" }, means: "token:tok_1" };
let client: QueryClient;

const render = (node: ReactNode) =>
  renderToStaticMarkup(
    <QueryClientProvider client={client}>
      <Tooltip.Provider>{node}</Tooltip.Provider>
    </QueryClientProvider>,
  );

beforeEach(() => {
  client = new QueryClient();
  client.setQueryData(keys.me(), me);
});

describe("secrets", () => {
  it("show that they are loading", () => {
    expect(render(<SecretList />)).toContain('role="status"');
  });

  it("are listed by name with their actions; those of a project are separate", () => {
    client.setQueryData(keys.secrets(undefined), [{ id: "sec_1", name: "NPM_TOKEN", updatedAt: at }]);
    client.setQueryData(keys.secrets("prj_1"), []);
    expect(render(<SecretList />)).toMatch(/Your secrets.*NPM_TOKEN.*aria-label="Replace NPM_TOKEN"/);
    const ofProject = render(<SecretList projectId="prj_1" frozen />);
    expect(ofProject).toMatch(/Project secrets.*No secrets/);
    expect(ofProject).toMatch(/disabled=""[^>]*>.*Add a secret/);
  });
});

describe("tokens", () => {
  it("show which one is in use and which has expired", () => {
    client.setQueryData(keys.tokens(), [
      { id: "tok_1", name: "laptop", hint: "sy_a", createdAt: at, lastUsedAt: null, expiresAt: null },
      { id: "tok_2", name: "ci", hint: "sy_b", createdAt: at, lastUsedAt: at, expiresAt: at },
    ]);
    const html = render(<Tokens />);
    expect(html).toMatch(/laptop.*current sign-in.*not used yet.*aria-label="Revoke laptop"/);
    expect(html).toMatch(/ci.*expired.*last used/);
  });
});

describe("people", () => {
  it("can be changed by an administrator, except for the administrator's own account", () => {
    client.setQueryData(keys.users(), [
      { ...me.user, createdAt: at, disabledAt: null },
      { id: "usr_2", name: "Bob", role: "member", createdAt: at, disabledAt: at },
    ]);
    const html = render(<People />);
    expect(html).toContain("edit your account under Profile");
    expect(html).not.toContain('aria-label="Disable Ada"');
    expect(html).toMatch(/aria-label="Role of Bob".*aria-label="Enable Bob"/);
  });
});

describe("a new person", () => {
  it("needs no password; the message says which projects a member can see", () => {
    expect(render(<UserForm onDone={() => undefined} />)).toContain("Password (optional)");
    stubs.onUserCreated({ name: "Bob", role: "member" });
    stubs.onUserCreated({ name: "Eve", role: "admin" });
    expect(stubs.success).toEqual([
      ["Bob added", { description: expect.stringContaining("see only projects they are added to") }],
      ["Eve added", {}],
    ]);
  });
});

describe("MCP servers", () => {
  const server = { id: "mcp_1", projectId: "prj_1", updatedAt: at, env: {}, args: ["-y", "tool"], headers: [] };

  it("can be tested if they have a URL", () => {
    client.setQueryData(keys.mcpServers("prj_1"), [
      { ...server, name: "issues", type: "http", url: "https://mcp.example.org", command: null },
      { ...server, id: "mcp_2", name: "local", type: "stdio", url: null, command: "npx" },
    ]);
    const html = render(<McpServers projectId="prj_1" frozen={false} />);
    expect(html).toContain('aria-label="Test issues"');
    expect(html).toContain("no headers");
    expect(html).not.toContain('aria-label="Test local"');
    expect(html).toContain("npx -y tool");
  });
});
