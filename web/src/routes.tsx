/** All pages and their URLs. The state of a page (tab, filter, selection) is part of the URL, so that it can be shared. */
import type { QueryClient } from "@tanstack/react-query";
import {
  createRootRouteWithContext,
  createRoute,
  createRouter,
  lazyRouteComponent,
  Outlet,
  redirect,
  useRouter,
} from "@tanstack/react-router";
import { ApiError } from "@/api/client";
import { meQuery } from "@/api/queries/account";
import { projectsQuery } from "@/api/queries/projects";
import type {
  AuditSearch,
  BoardSearch,
  ProjectsSearch,
  SandboxesSearch,
  SchedulesSearch,
  SessionsSearch,
  SignInSearch,
  TabSearch,
  UsageSearch,
  WelcomeSearch,
  WorkSearch,
} from "@/lib/search-params";
import { ErrorState, Loading } from "@/ui/states";
import { NotFound } from "./shell/not-found";

interface Context {
  client: QueryClient;
}

const text = (value: unknown): string | undefined => (typeof value === "string" && value ? value : undefined);

const root = createRootRouteWithContext<Context>()({ component: Outlet, notFoundComponent: NotFound });

const signIn = createRoute({
  getParentRoute: () => root,
  path: "/sign-in",
  validateSearch: (search): SignInSearch => ({ next: text(search.next) }),
  component: lazyRouteComponent(() => import("./features/sign-in/page"), "SignInPage"),
});

/** Show a failure of the first load. Retrying reloads the signed-in user; resetting the boundary alone would show the same error. */
function Failed({ error }: { error: unknown }) {
  const router = useRouter();
  return <ErrorState error={error} retry={() => router.invalidate()} />;
}

/** Pages that require sign-in. */
const inside = createRoute({
  getParentRoute: () => root,
  id: "inside",
  beforeLoad: async ({ context, location }) => {
    try {
      await context.client.ensureQueryData(meQuery);
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) {
        throw redirect({ to: "/sign-in", search: location.href === "/" ? {} : { next: location.href } });
      }
      throw error;
    }
  },
  component: lazyRouteComponent(() => import("./shell/layout"), "Layout"),
  pendingComponent: Loading,
  errorComponent: Failed,
  notFoundComponent: NotFound,
});

const home = createRoute({
  getParentRoute: () => inside,
  path: "/",
  beforeLoad: async ({ context }) => {
    const known = await context.client.ensureQueryData(projectsQuery);
    throw redirect({ to: known.length ? "/board" : "/welcome" });
  },
});

const welcome = createRoute({
  getParentRoute: () => inside,
  path: "/welcome",
  validateSearch: (search): WelcomeSearch => ({ project: text(search.project) }),
  component: lazyRouteComponent(() => import("./features/welcome/page"), "WelcomePage"),
});

const board = createRoute({
  getParentRoute: () => inside,
  path: "/board",
  validateSearch: (search): BoardSearch => ({
    project: text(search.project),
    q: text(search.q),
    agent: text(search.agent),
    show: (["needs-you", "running", "failed"] as const).find((value) => value === search.show),
    new: search.new === true || undefined,
  }),
  component: lazyRouteComponent(() => import("./features/board/page"), "BoardPage"),
});

const workSearch = (search: Record<string, unknown>): WorkSearch => ({
  tab: text(search.tab),
  attempt: typeof search.attempt === "number" ? search.attempt : undefined,
  at: text(search.at),
});
const task = createRoute({
  getParentRoute: () => inside,
  path: "/tasks/$taskId",
  validateSearch: workSearch,
  component: lazyRouteComponent(() => import("./features/tasks/page"), "TaskPage"),
});

const sessions = createRoute({
  getParentRoute: () => inside,
  path: "/sessions",
  validateSearch: (search): SessionsSearch => ({
    project: text(search.project),
    archived: search.archived === true || undefined,
    new: search.new === true || undefined,
  }),
  component: lazyRouteComponent(() => import("./features/sessions/page"), "SessionsPage"),
});
const session = createRoute({
  getParentRoute: () => inside,
  path: "/sessions/$sessionId",
  validateSearch: workSearch,
  component: lazyRouteComponent(() => import("./features/sessions/session-page"), "SessionPage"),
});

const sandboxes = createRoute({
  getParentRoute: () => inside,
  path: "/sandboxes",
  validateSearch: (search): SandboxesSearch => ({ status: text(search.status), all: search.all === true || undefined }),
  component: lazyRouteComponent(() => import("./features/sandboxes/page"), "SandboxesPage"),
});
const sandbox = createRoute({
  getParentRoute: () => inside,
  path: "/sandboxes/$sandboxId",
  validateSearch: workSearch,
  component: lazyRouteComponent(() => import("./features/sandboxes/sandbox-page"), "SandboxPage"),
});

const tabSearch = (search: Record<string, unknown>): TabSearch => ({
  tab: text(search.tab),
  from: search.from === "welcome" ? "welcome" : undefined,
});

const projectList = createRoute({
  getParentRoute: () => inside,
  path: "/projects",
  validateSearch: (search): ProjectsSearch => ({ archived: search.archived === true || undefined }),
  component: lazyRouteComponent(() => import("./features/projects/page"), "ProjectsPage"),
});
const projectPage = createRoute({
  getParentRoute: () => inside,
  path: "/projects/$projectId",
  validateSearch: tabSearch,
  component: lazyRouteComponent(() => import("./features/projects/project-page"), "ProjectPage"),
});
const agents = createRoute({
  getParentRoute: () => inside,
  path: "/agents",
  validateSearch: tabSearch,
  component: lazyRouteComponent(() => import("./features/agents/page"), "AgentsPage"),
});

const schedules = createRoute({
  getParentRoute: () => inside,
  path: "/schedules",
  validateSearch: (search): SchedulesSearch => ({ project: text(search.project) }),
  component: lazyRouteComponent(() => import("./features/schedules/page"), "SchedulesPage"),
});

const usage = createRoute({
  getParentRoute: () => inside,
  path: "/usage",
  validateSearch: (search): UsageSearch => ({
    project: text(search.project),
    days: typeof search.days === "number" ? search.days : undefined,
    show: search.show === "tokens" ? "tokens" : undefined,
  }),
  component: lazyRouteComponent(() => import("./features/usage/page"), "UsagePage"),
});

const audit = createRoute({
  getParentRoute: () => inside,
  path: "/audit",
  validateSearch: (search): AuditSearch => ({
    user: text(search.user),
    action: text(search.action),
    target: text(search.target),
  }),
  component: lazyRouteComponent(() => import("./features/audit/page"), "AuditPage"),
});
const settings = createRoute({
  getParentRoute: () => inside,
  path: "/settings",
  validateSearch: tabSearch,
  component: lazyRouteComponent(() => import("./features/settings/page"), "SettingsPage"),
});

const help = createRoute({
  getParentRoute: () => inside,
  path: "/help",
  validateSearch: tabSearch,
  component: lazyRouteComponent(() => import("./features/help/page"), "HelpPage"),
});

const tree = root.addChildren([
  signIn,
  inside.addChildren([
    home, welcome, board, task, sessions, session, sandboxes, sandbox, projectList, projectPage, agents, schedules, usage, audit, settings,
    help,
  ]), // biome-ignore format: a list of names
]);

export function makeRouter(client: QueryClient) {
  return createRouter({
    routeTree: tree,
    context: { client },
    defaultPreload: "intent",
    defaultPreloadStaleTime: 0,
    defaultPendingMs: 300,
    scrollRestoration: false,
  });
}

declare module "@tanstack/react-router" {
  interface Register {
    router: ReturnType<typeof makeRouter>;
  }
}
