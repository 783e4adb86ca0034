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

const parseText = (value: unknown): string | undefined => (typeof value === "string" && value ? value : undefined);

const root = createRootRouteWithContext<Context>()({ component: Outlet, notFoundComponent: NotFound });

const signIn = createRoute({
  getParentRoute: () => root,
  path: "/sign-in",
  validateSearch: (search): SignInSearch => ({ next: parseText(search.next) }),
  component: lazyRouteComponent(() => import("./features/sign-in/page"), "SignInPage"),
});

/** Show a failure of the first load. Retrying reloads the signed-in user; resetting the boundary alone would show the same error. */
function LoadError({ error }: { error: unknown }) {
  const router = useRouter();
  return <ErrorState error={error} retry={() => router.invalidate()} />;
}

/** Pages that require sign-in. */
const signedIn = createRoute({
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
  errorComponent: LoadError,
  notFoundComponent: NotFound,
});

const home = createRoute({
  getParentRoute: () => signedIn,
  path: "/",
  beforeLoad: async ({ context }) => {
    const projects = await context.client.ensureQueryData(projectsQuery);
    throw redirect({ to: projects.length ? "/board" : "/welcome" });
  },
});

const welcome = createRoute({
  getParentRoute: () => signedIn,
  path: "/welcome",
  validateSearch: (search): WelcomeSearch => ({ project: parseText(search.project) }),
  component: lazyRouteComponent(() => import("./features/welcome/page"), "WelcomePage"),
});

const board = createRoute({
  getParentRoute: () => signedIn,
  path: "/board",
  validateSearch: (search): BoardSearch => ({
    project: parseText(search.project),
    q: parseText(search.q),
    agent: parseText(search.agent),
    show: (["needs-you", "running", "failed"] as const).find((value) => value === search.show),
    new: search.new === true || undefined,
  }),
  component: lazyRouteComponent(() => import("./features/board/page"), "BoardPage"),
});

const parseWorkSearch = (search: Record<string, unknown>): WorkSearch => ({
  tab: parseText(search.tab),
  attempt: typeof search.attempt === "number" ? search.attempt : undefined,
  at: parseText(search.at),
});
const task = createRoute({
  getParentRoute: () => signedIn,
  path: "/tasks/$taskId",
  validateSearch: parseWorkSearch,
  component: lazyRouteComponent(() => import("./features/tasks/page"), "TaskPage"),
});

const sessions = createRoute({
  getParentRoute: () => signedIn,
  path: "/sessions",
  validateSearch: (search): SessionsSearch => ({
    project: parseText(search.project),
    archived: search.archived === true || undefined,
    new: search.new === true || undefined,
  }),
  component: lazyRouteComponent(() => import("./features/sessions/page"), "SessionsPage"),
});
const session = createRoute({
  getParentRoute: () => signedIn,
  path: "/sessions/$sessionId",
  validateSearch: parseWorkSearch,
  component: lazyRouteComponent(() => import("./features/sessions/session-page"), "SessionPage"),
});

const sandboxes = createRoute({
  getParentRoute: () => signedIn,
  path: "/sandboxes",
  validateSearch: (search): SandboxesSearch => ({
    status: parseText(search.status),
    all: search.all === true || undefined,
  }),
  component: lazyRouteComponent(() => import("./features/sandboxes/page"), "SandboxesPage"),
});
const sandbox = createRoute({
  getParentRoute: () => signedIn,
  path: "/sandboxes/$sandboxId",
  validateSearch: parseWorkSearch,
  component: lazyRouteComponent(() => import("./features/sandboxes/sandbox-page"), "SandboxPage"),
});

const parseTabSearch = (search: Record<string, unknown>): TabSearch => ({
  tab: parseText(search.tab),
  from: search.from === "welcome" ? "welcome" : undefined,
});

const projectList = createRoute({
  getParentRoute: () => signedIn,
  path: "/projects",
  validateSearch: (search): ProjectsSearch => ({ archived: search.archived === true || undefined }),
  component: lazyRouteComponent(() => import("./features/projects/page"), "ProjectsPage"),
});
const projectPage = createRoute({
  getParentRoute: () => signedIn,
  path: "/projects/$projectId",
  validateSearch: parseTabSearch,
  component: lazyRouteComponent(() => import("./features/projects/project-page"), "ProjectPage"),
});
const agents = createRoute({
  getParentRoute: () => signedIn,
  path: "/agents",
  validateSearch: parseTabSearch,
  component: lazyRouteComponent(() => import("./features/agents/page"), "AgentsPage"),
});

const schedules = createRoute({
  getParentRoute: () => signedIn,
  path: "/schedules",
  validateSearch: (search): SchedulesSearch => ({ project: parseText(search.project) }),
  component: lazyRouteComponent(() => import("./features/schedules/page"), "SchedulesPage"),
});

const usage = createRoute({
  getParentRoute: () => signedIn,
  path: "/usage",
  validateSearch: (search): UsageSearch => ({
    project: parseText(search.project),
    days: typeof search.days === "number" ? search.days : undefined,
    show: search.show === "tokens" ? "tokens" : undefined,
  }),
  component: lazyRouteComponent(() => import("./features/usage/page"), "UsagePage"),
});

const audit = createRoute({
  getParentRoute: () => signedIn,
  path: "/audit",
  validateSearch: (search): AuditSearch => ({
    user: parseText(search.user),
    action: parseText(search.action),
    target: parseText(search.target),
  }),
  component: lazyRouteComponent(() => import("./features/audit/page"), "AuditPage"),
});
const settings = createRoute({
  getParentRoute: () => signedIn,
  path: "/settings",
  validateSearch: parseTabSearch,
  component: lazyRouteComponent(() => import("./features/settings/page"), "SettingsPage"),
});

const help = createRoute({
  getParentRoute: () => signedIn,
  path: "/help",
  validateSearch: parseTabSearch,
  component: lazyRouteComponent(() => import("./features/help/page"), "HelpPage"),
});

const tree = root.addChildren([
  signIn,
  signedIn.addChildren([
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
