/** The pages listed in the sidebar, in the phone's bottom bar and in the command palette. */
import {
  Bot,
  CalendarClock,
  ChartNoAxesColumn,
  CircleHelp,
  Container,
  FolderGit2,
  MessagesSquare,
  ScrollText,
  Settings,
  SquareKanban,
} from "lucide-react";
import type { ComponentType } from "react";

export interface AppPage {
  to:
    | "/board"
    | "/sessions"
    | "/sandboxes"
    | "/projects"
    | "/agents"
    | "/schedules"
    | "/usage"
    | "/audit"
    | "/settings"
    | "/help";
  label: string;
  icon: ComponentType<{ className?: string; "aria-hidden"?: boolean }>;
  /** For administrators only. */
  admin?: boolean;
  /** Shown directly in the phone's bottom bar. */
  small?: boolean;
  /** Synonyms that the palette also matches. */
  words?: string;
}

export const PAGES: AppPage[] = [
  { to: "/board", label: "Board", icon: SquareKanban, small: true },
  { to: "/sessions", label: "Sessions", icon: MessagesSquare, small: true },
  { to: "/sandboxes", label: "Sandboxes", icon: Container, small: true },
  { to: "/projects", label: "Projects", icon: FolderGit2, small: true },
  { to: "/agents", label: "Agents", icon: Bot },
  { to: "/schedules", label: "Schedules", icon: CalendarClock },
  { to: "/usage", label: "Usage", icon: ChartNoAxesColumn },
  { to: "/audit", label: "Audit log", icon: ScrollText, admin: true },
  { to: "/settings", label: "Settings", icon: Settings },
  { to: "/help", label: "Help", icon: CircleHelp, words: "docs documentation manual guide" },
];

export interface PageTab {
  to: "/agents" | "/settings";
  tab: string;
  label: string;
  /** Synonyms that the palette also matches. */
  words: string;
  admin?: boolean;
}

/** Tabs of pages that the palette finds. */
export const PAGE_TABS: PageTab[] = [
  { to: "/agents", tab: "providers", label: "Model providers and keys", words: "api keys llm anthropic openai" },
  { to: "/settings", tab: "profile", label: "Profile and password", words: "account name change" },
  { to: "/settings", tab: "people", label: "People", words: "users members add person accounts invite", admin: true },
  {
    to: "/settings",
    tab: "status",
    label: "Status of the installation",
    words: "engine queues disk memory problems health",
    admin: true,
  },
  { to: "/settings", tab: "tokens", label: "API tokens", words: "access keys" },
  { to: "/settings", tab: "secrets", label: "Secrets", words: "environment variables" },
  { to: "/settings", tab: "notifications", label: "Notification settings", words: "alerts" },
  { to: "/settings", tab: "appearance", label: "Appearance", words: "theme colours dark light" },
  { to: "/settings", tab: "about", label: "About", words: "version health api openapi" },
];

/** Tabs of each project's settings that the palette finds. */
export const PROJECT_TABS = [
  { tab: "access", label: "Repository access", words: "token credentials ssh key github webhook" },
  { tab: "agent", label: "Agent and MCP servers", words: "permissions tools" },
  { tab: "setup", label: "Setup and verification", words: "tests checks" },
  { tab: "forge", label: "Git and forge", words: "github enterprise pull requests commits" },
  { tab: "board", label: "Board and budgets", words: "limits costs" },
  { tab: "policy", label: "Command policy", words: "allow deny" },
  { tab: "network", label: "Network", words: "internet hosts" },
  { tab: "secrets", label: "Secrets", words: "environment variables" },
  { tab: "models", label: "Models", words: "keys providers" },
  { tab: "members", label: "Members", words: "people users" },
];
