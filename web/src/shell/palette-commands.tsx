import { useNavigate } from "@tanstack/react-router";
import clsx from "clsx";
import {
  Bot,
  CirclePlus,
  FolderGit2,
  MessageSquarePlus,
  MessagesSquare,
  MoonStar,
  Settings,
  Settings2,
  SquareCheck,
} from "lucide-react";
import { type ComponentType, Fragment, type KeyboardEvent, useEffect, useId, useState } from "react";
import { useIsAdmin } from "@/api/queries/account";
import { useAgents } from "@/api/queries/agents";
import { useProjects } from "@/api/queries/projects";
import { useRecentSessions } from "@/api/queries/sessions";
import { useTaskSearch } from "@/api/queries/tasks";
import { useTheme } from "@/lib/theme";
import { COLUMNS } from "@/model/status-labels";
import { PAGE_TABS, PAGES, PROJECT_TABS } from "./pages";
import { type Entry, markedEntry, matchEntries, stepFrom } from "./palette-entries";

interface Command extends Entry {
  icon: ComponentType<{ className?: string; "aria-hidden"?: boolean }>;
}

/** A search box and its matches. Enter runs the highlighted match for the text in the box: the selected one, else the first. */
export function Commands({ onClose }: { onClose: () => void }) {
  const id = useId();
  const [words, setWords] = useState("");
  const [chosen, setChosen] = useState<string | null>(null);
  /** Enter was pressed before the platform had answered this search. */
  const [entered, setEntered] = useState(false);
  const [commands, complete] = useCommands(words.trim());
  const shown = matchEntries(commands, words);
  const marked = markedEntry(shown, chosen);
  const optionId = (entry: Entry) => `${id}-${entry.id}`;

  const run = (command: Command) => {
    onClose();
    void command.run();
  };
  const key = (event: KeyboardEvent) => {
    if (event.nativeEvent.isComposing) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      setChosen(stepFrom(shown, marked, event.key === "ArrowDown" ? 1 : -1)?.id ?? null);
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (marked) run(marked);
      else setEntered(!complete);
    }
  };
  useEffect(() => {
    if (!entered || !(marked || complete)) return;
    setEntered(false);
    if (marked) run(marked);
  });
  const markedId = marked && optionId(marked);
  useEffect(() => {
    if (markedId) document.getElementById(markedId)?.scrollIntoView({ block: "nearest" });
  }, [markedId]);
  return (
    <>
      <input
        value={words}
        onChange={(event) => {
          setWords(event.target.value);
          setChosen(null);
          setEntered(false);
        }}
        onKeyDown={key}
        placeholder="Search tasks, sessions, pages and commands…"
        type="text"
        role="combobox"
        aria-label="Search and commands"
        aria-expanded
        aria-autocomplete="list"
        aria-controls={`${id}-list`}
        aria-activedescendant={markedId}
        autoComplete="off"
        autoCorrect="off"
        spellCheck={false}
        maxLength={200}
        className="h-11 w-full border-b bg-transparent px-4 text-[14px] outline-none"
      />
      <div id={`${id}-list`} role="listbox" aria-label="Matches" className="max-h-[55vh] overflow-y-auto p-1">
        {shown.map((command, place) => (
          <Fragment key={command.id}>
            {command.group !== shown[place - 1]?.group && (
              <div role="presentation" aria-hidden className="px-2 py-1 text-2xs text-faint">
                {command.group}
              </div>
            )}
            {/* biome-ignore lint/a11y/useKeyWithClickEvents: the focus stays in the search box */}
            {/* biome-ignore lint/a11y/useFocusableInteractive: aria-activedescendant of the search box names the highlighted option */}
            <div
              id={optionId(command)}
              role="option"
              aria-selected={command === marked}
              onPointerMove={(event) => (event.movementX || event.movementY) && setChosen(command.id)}
              onClick={() => run(command)}
              className={clsx(
                "flex cursor-pointer items-center gap-2 rounded px-2 py-1.5 text-[13px]",
                command === marked && "bg-hover",
              )}
            >
              <command.icon className="size-4 shrink-0 text-faint" aria-hidden />
              <span className="min-w-0 flex-1 truncate">{command.label}</span>
              {command.note && <span className="text-2xs text-faint">{command.note}</span>}
            </div>
          </Fragment>
        ))}
      </div>
      {shown.length === 0 && (
        <p role="status" className="px-4 pt-2 pb-5 text-center text-[13px] text-soft">
          {complete ? "No results." : "Searching…"}
        </p>
      )}
    </>
  );
}

/** Return all commands that may match, and whether the platform has answered this search. */
function useCommands(words: string): [Command[], boolean] {
  const navigate = useNavigate();
  const [theme, , choose] = useTheme();
  const tasks = useTaskSearch(words);
  const projects = useProjects();
  const sessions = useRecentSessions();
  const agents = useAgents();
  const isAdmin = useIsAdmin();
  const answered = !tasks.isPlaceholderData && !tasks.isPending;
  const commands: Command[] = [
    {
      id: "new-task",
      group: "Commands",
      label: "New task",
      icon: CirclePlus,
      run: () => navigate({ to: "/board", search: { new: true } }),
    },
    {
      id: "new-session",
      group: "Commands",
      label: "New session",
      icon: MessageSquarePlus,
      run: () => navigate({ to: "/sessions", search: { new: true } }),
    },
    {
      id: "theme",
      group: "Commands",
      label: theme === "dark" ? "Light theme" : "Dark theme",
      icon: MoonStar,
      run: () => choose(theme === "dark" ? "light" : "dark"),
    },
    ...PAGES.filter((page) => !page.admin || isAdmin).map((page) => ({
      id: page.to,
      group: "Go to",
      label: page.label,
      words: page.words ?? "",
      icon: page.icon,
      run: () => navigate({ to: page.to }),
    })),
    ...PAGE_TABS.filter((tab) => !tab.admin || isAdmin).map((tab) => ({
      id: `${tab.to}/${tab.tab}`,
      group: "Settings",
      label: tab.label,
      words: `settings ${tab.words}`,
      quiet: true,
      icon: Settings,
      run: () => navigate({ to: tab.to, search: { tab: tab.tab } }),
    })),
    ...(tasks.data ?? []).map((task) => ({
      id: task.id,
      group: "Tasks",
      label: task.title,
      note: COLUMNS[task.status].text,
      found: answered,
      icon: SquareCheck,
      run: () => navigate({ to: "/tasks/$taskId", params: { taskId: task.id } }),
    })),
    ...(sessions.data ?? []).map((session) => ({
      id: session.id,
      group: "Sessions",
      label: session.title,
      quiet: true,
      icon: MessagesSquare,
      run: () => navigate({ to: "/sessions/$sessionId", params: { sessionId: session.id } }),
    })),
    ...(agents.data ?? []).map((agent) => ({
      id: `agent/${agent.name}`,
      group: "Agents",
      label: agent.title,
      words: `agent ${agent.name}`,
      quiet: true,
      icon: Bot,
      run: () => navigate({ to: "/agents", search: {} }),
    })),
    ...(projects.data ?? []).map((project) => ({
      id: project.id,
      group: "Projects",
      label: project.name,
      note: "board",
      icon: FolderGit2,
      run: () => navigate({ to: "/board", search: { project: project.id } }),
    })),
    ...(projects.data ?? []).flatMap((project) =>
      PROJECT_TABS.map((tab) => ({
        id: `${project.id}/${tab.tab}`,
        group: "Project settings",
        label: tab.label,
        note: project.name,
        words: `settings ${project.name} ${tab.words}`,
        quiet: true,
        icon: Settings2,
        run: () =>
          navigate({ to: "/projects/$projectId", params: { projectId: project.id }, search: { tab: tab.tab } }),
      })),
    ),
  ];
  const complete = answered && ![projects, sessions, agents].some((query) => query.isPending);
  return [commands, complete];
}
