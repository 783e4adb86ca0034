/** The state of pages in their URLs: tabs, filters, selections. `routes.tsx` validates them. */

export interface SignInSearch {
  next?: string | undefined;
}

export interface WelcomeSearch {
  /** The project selected in the first step. */
  project?: string | undefined;
}

export interface BoardSearch {
  project?: string | undefined;
  q?: string | undefined;
  agent?: string | undefined;
  /** Show only cards that need a person, are running, or have failed. */
  show?: "needs-you" | "running" | "failed" | undefined;
  /** The dialog for a new task is open. */
  new?: boolean | undefined;
}

/** The workspace of a task, session or sandbox. */
export interface WorkSearch {
  tab?: string | undefined;
  /** Number of the task's attempt. */
  attempt?: number | undefined;
  /** The file, command or commit that is selected in the tab. */
  at?: string | undefined;
}

export interface SessionsSearch {
  project?: string | undefined;
  archived?: boolean | undefined;
  new?: boolean | undefined;
}

export interface SandboxesSearch {
  status?: string | undefined;
  all?: boolean | undefined;
}

export interface TabSearch {
  tab?: string | undefined;
  /** The page that linked here, for a link back to it. */
  from?: "welcome" | undefined;
}

export interface ProjectsSearch {
  archived?: boolean | undefined;
}

export interface SchedulesSearch {
  project?: string | undefined;
}

export interface UsageSearch {
  project?: string | undefined;
  days?: number | undefined;
  show?: "tokens" | undefined;
}

export interface AuditSearch {
  user?: string | undefined;
  action?: string | undefined;
  target?: string | undefined;
}
