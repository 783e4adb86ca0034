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
vi.mock("react", async (original) => ({
  ...(await original<object>()),
  useSyncExternalStore: <T,>(_: unknown, read: () => T) => read(), // our stores have no snapshot for a server
}));
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
import type { Host, User } from "@/api/types";
import { McpServers } from "@/features/mcp/servers";
import { SecretList } from "@/features/secrets/list";
import { Disk } from "./disk";
import { LabelsForm } from "./host-labels";
import { Hosts } from "./hosts";
import { PasswordForm, People, UserForm } from "./people";
import { Limits } from "./quotas";
import { InstallationStatus } from "./status";
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

describe("passwords", () => {
  const user = { id: "usr_2", name: "Bo", role: "member", createdAt: at, disabledAt: null } as User;

  it("can be removed only if there is one", () => {
    const form = (hasPassword: boolean) =>
      render(<PasswordForm user={{ ...user, hasPassword }} onDone={() => undefined} />);
    expect(form(true)).toContain("Remove password");
    expect(form(false)).toContain("Set password");
    expect(form(false)).not.toContain("Remove password");
  });

  it("are missing for people who can only use tokens", () => {
    client.setQueryData(keys.users(), [{ ...user, hasPassword: false }]);
    expect(render(<People />)).toMatch(/Bo.*API tokens only/);
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

describe("the status of the installation", () => {
  const problem = { severe: false, target: null, targetId: null };
  const status = {
    version: "1.2.3",
    database: "SQLite",
    disk: { free: 1024 ** 3, total: 4 * 1024 ** 3 },
    problems: [],
    queues: [{ name: "attempts", waiting: 2, running: 8, limit: 8, waitingSince: at }],
    slow: [],
    engine: null,
    engineError: "The engine is busy.",
  };

  it("says that nothing is wrong, what waits, and what is left of the disk", () => {
    client.setQueryData(keys.status(), status);
    const page = render(<InstallationStatus />);
    expect(page).toContain("Nothing needs attention.");
    expect(page).toMatch(/Task attempts.*>8<span[^>]*> of .*8<.*>2</);
    expect(page).toMatch(/width:75%.*1.0 GiB free of 4.0 GiB/);
    expect(page).toContain("The engine is busy.");
    expect(page).not.toContain(">Slow<");
  });

  it("lists problems, slow work and what the engine lacks", () => {
    const engine = {
      version: "1.2.3",
      sandboxes: { running: 3, paused: 1, creating: 2, removing: 0 },
      pools: [{ template: "base", isolation: "namespace", containers: false, ready: 1, target: 4 }],
      isolation: ["namespace"],
      missing: { gvisor: "runsc is not installed" },
      memoryAvailable: null,
      diskFree: 1024,
      layerStore: null,
    };
    client.setQueryData(keys.status(), {
      ...status,
      engine,
      problems: [{ ...problem, severe: true, text: "The disk is full." }],
      slow: [{ text: "Engine: driver.create of isbx", since: null, seconds: 7.5, error: "It is full." }],
    });
    const page = render(<InstallationStatus />);
    expect(page).toMatch(/aria-label="Severe".*The disk is full\./);
    expect(page).toMatch(/driver\.create of isbx.*It is full\..*took 7\.5s/);
    expect(page).toMatch(/3 running, 1 paused, 2 being created.*base \(Namespaces\): 1 of 4/);
    expect(page).toMatch(/unknown.*1\.0 KiB.*No gVisor.*runsc is not installed/);
  });
});

describe("the disk", () => {
  const entry = { place: "engine", kind: "images", bytes: 3 << 20, count: 4, oldestAt: null };

  it("shows what takes the space and how much can be freed", () => {
    client.setQueryData(keys.disk(), {
      entries: [
        { ...entry, removable: 2, removableBytes: 2 << 20 },
        { ...entry, place: "platform", kind: "preparations", bytes: null, removable: 1, removableBytes: null },
      ],
      rooms: [{ place: "engine", path: "/data", free: 1024, total: 4096 }],
      engineError: null,
    });
    const page = render(<Disk />);
    expect(page).toMatch(/<button[^>]*>.*Free (<!-- -->)?2\.0 MiB/);
    expect(page).toMatch(/Layers of images.*3\.0 MiB.*4.*2\.0 MiB \(2\)/);
    expect(page).toMatch(/Preparations.*in snapshots.*>1</);
    expect(page).toMatch(/\/data.*1\.0 KiB.*free of.*4\.0 KiB/);
  });

  it("offers nothing if nothing can be freed, and says if the engine does not answer", () => {
    client.setQueryData(keys.disk(), {
      entries: [{ ...entry, removable: 0, removableBytes: 0 }],
      rooms: [],
      engineError: "The engine is away.",
    });
    const page = render(<Disk />);
    expect(page).not.toContain("<button");
    expect(page).toContain("The engine is away.");
  });
});

describe("limits", () => {
  it("shows what is used next to the limit", () => {
    client.setQueryData(keys.quotas("users", "usr_1"), {
      items: [
        { name: "cpus", used: 6, limit: 8 },
        { name: "memoryMb", used: 2048, limit: null },
        { name: "monthlyUsd", used: 2.5, limit: 10 },
      ],
      own: {},
    });
    const page = render(<Limits />);
    expect(page).toMatch(
      /Processors of running sandboxes.*6 of 8.*aria-label="Processors of running sandboxes: 6 of 8"/,
    );
    expect(page).toContain("2.0 GiB, no limit");
    expect(page).toMatch(/Models this month.*\$2\.50 of \$10/);
  });
});

describe("hosts", () => {
  const host = {
    id: "local",
    name: "local",
    local: true,
    address: "127.0.0.1",
    port: 0,
    labels: {},
    draining: false,
    evacuation: null,
    lost: false,
    source: null,
    missingFromSource: false,
    checkpoints: { count: 0, oldest: null },
    state: "ready",
    since: at,
    seenAt: null,
    reason: null,
    version: "1.2",
    sandboxes: 1,
    room: null,
    isolation: ["namespace"],
    missing: {},
    joinedAt: null,
    certificateExpiresAt: null,
  };
  const room = {
    memoryTotal: 8 * 2 ** 30,
    memoryAvailable: 2 * 2 ** 30,
    diskTotal: null,
    diskFree: 10 * 2 ** 30,
    cpuCount: 4,
    load: 0.25,
    full: null,
  };
  const other = { ...host, id: "host-2", name: "build-2", local: false, address: "10.0.0.2", labels: { disk: "fast" } };
  const show = (...items: object[]) => {
    client.setQueryData(keys.hosts(), { items: [host, ...items], acceptsHosts: true, sources });
    return render(<Hosts />);
  };
  let sources: object[] = [];
  beforeEach(() => {
    sources = [];
  });

  it("are shown with their room, version and what runs there", () => {
    const html = show({ ...other, room, sandboxes: 3 });
    expect(html).toMatch(/This server.*Ready.*1 sandbox.*build-2.*Ready.*disk=fast.*3 sandboxes · version 1.2/);
    expect(html).toMatch(/10\.0\.0\.2 · 4 CPUs, load 0\.3.*aria-label="Memory of build-2: 6\.0 GiB of 8\.0 GiB used"/);
    expect(html).not.toContain("Disk of build-2"); // its size is unknown
  });

  it("can be drained and used again, except for the server itself", () => {
    const html = show(other, { ...other, id: "host-3", name: "build-3", draining: true });
    expect(html).toMatch(/aria-label="Drain build-2".*build-3.*Draining.*aria-label="Use build-3 again"/);
    expect(html).not.toContain("Drain local");
  });

  it("can be labelled, except for the server itself", () => {
    const html = show(other);
    expect(html).toContain('aria-label="Labels of build-2"');
    expect(html).not.toContain("Labels of local");
    const form = render(<LabelsForm host={other as unknown as Host} onDone={() => undefined} />);
    expect(form).toMatch(/<textarea[^>]*>disk=fast<\/textarea>.*Save/s);
  });

  it("show how far they are emptied, and what could not be moved", () => {
    const evacuation = { moved: 2, total: 3, failures: { iabc: "It mounts the volume data." } };
    const html = show({ ...other, draining: true, sandboxes: 1, evacuation });
    expect(html).toMatch(/2 of 3 sandboxes moved.*iabc was not moved: It mounts the volume data\./);
  });

  it("can be recovered from their checkpoints if they are lost", () => {
    const away = { ...other, state: "unreachable", reason: "it does not answer" };
    const checkpoints = { count: 1, oldest: at };
    expect(show({ ...away, checkpoints })).toContain('aria-label="Recover sandboxes of build-2"');
    expect(show(away)).not.toContain("Recover");
    expect(show({ ...other, checkpoints })).not.toContain("Recover");
    const lost = show({ ...away, lost: true, draining: true, checkpoints });
    expect(lost).toMatch(/build-2.*Lost/);
    expect(lost).not.toContain("Recover");
  });

  it("show where they come from, and which machines there could not be made hosts", () => {
    const machine = { id: "n1", name: "gpu-1", address: "10.0.0.3", problem: "There is no disk." };
    sources = [{ name: "ray", problem: "Ray at 10.0.0.1:6379 cannot be reached.", machines: [machine] }];
    const html = show({ ...other, source: "ray" }, { ...other, id: "host-3", source: "static" });
    expect(html.match(/from Ray/g)).toHaveLength(1);
    expect(html).toMatch(
      /Ray at 10\.0\.0\.1:6379 cannot be reached\..*gpu-1 \(Ray\) is not a host: There is no disk\./,
    );
    const gone = show({ ...other, source: "ray", state: "unreachable", reason: "no answer", missingFromSource: true });
    expect(gone).toMatch(/no answer.*Ray no longer lists it/);
  });

  it("say why they do not respond, and that their sandboxes are kept", () => {
    const html = show({ ...other, state: "unreachable", reason: "it does not answer", seenAt: at });
    expect(html).toMatch(/Not responding.*it does not answer.*Last response.*Its sandboxes are kept\./);
    expect(show({ ...other, room: { ...room, full: "too many sandboxes" } })).toContain("too many sandboxes");
  });
});
