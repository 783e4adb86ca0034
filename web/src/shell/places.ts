/** Where one can go: the bar at the side, the one below on a phone, and the palette all go by this. */
import {
  Bot,
  CalendarClock,
  ChartNoAxesColumn,
  Container,
  FolderGit2,
  MessagesSquare,
  ScrollText,
  Settings,
  SquareKanban,
} from "lucide-react";
import type { ComponentType } from "react";

export interface Place {
  to:
    | "/board"
    | "/sessions"
    | "/sandboxes"
    | "/projects"
    | "/agents"
    | "/schedules"
    | "/usage"
    | "/audit"
    | "/settings";
  label: string;
  icon: ComponentType<{ className?: string; "aria-hidden"?: boolean }>;
  /** Only administrators. */
  admin?: boolean;
  /** Has its own place in the bar of a phone. */
  small?: boolean;
}

export const PLACES: Place[] = [
  { to: "/board", label: "Board", icon: SquareKanban, small: true },
  { to: "/sessions", label: "Sessions", icon: MessagesSquare, small: true },
  { to: "/sandboxes", label: "Sandboxes", icon: Container, small: true },
  { to: "/projects", label: "Projects", icon: FolderGit2, small: true },
  { to: "/agents", label: "Agents", icon: Bot },
  { to: "/schedules", label: "Schedules", icon: CalendarClock },
  { to: "/usage", label: "Usage", icon: ChartNoAxesColumn },
  { to: "/audit", label: "Audit log", icon: ScrollText, admin: true },
  { to: "/settings", label: "Settings", icon: Settings },
];
