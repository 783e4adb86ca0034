import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { Command } from "cmdk";
import { CirclePlus, FolderGit2, MessageSquarePlus, MoonStar, SquareCheck } from "lucide-react";
import { type ReactNode, useState } from "react";
import { me, projects, searched } from "@/api/queries";
import { COLUMNS } from "@/lib/status";
import { useTheme } from "@/lib/theme";
import { PLACES } from "./places";

const ITEM = "flex cursor-pointer items-center gap-2 rounded px-2 py-1.5 text-[13px] data-[selected=true]:bg-hover";
const GROUP =
  "[&_[cmdk-group-heading]]:px-2 [&_[cmdk-group-heading]]:py-1 [&_[cmdk-group-heading]]:text-2xs [&_[cmdk-group-heading]]:text-faint";

export default function Commands({ open, onOpenChange }: { open: boolean; onOpenChange: (open: boolean) => void }) {
  const navigate = useNavigate();
  const [theme, , choose] = useTheme();
  const [words, setWords] = useState("");
  const cards = useQuery({ ...searched(words.trim()), enabled: open });
  const known = useQuery({ ...projects, enabled: open });
  const own = useQuery(me);
  const change = (next: boolean) => {
    if (!next) setWords("");
    onOpenChange(next);
  };
  const act = (action: () => unknown) => () => {
    change(false);
    void action();
  };
  return (
    <Command.Dialog
      open={open}
      onOpenChange={change}
      label="Search and commands"
      overlayClassName="fixed inset-0 z-40 bg-black/40"
      contentClassName="fixed top-[12vh] left-1/2 z-50 w-[min(38rem,94vw)] -translate-x-1/2 overflow-hidden rounded-lg border bg-raised shadow-float"
    >
      <Command.Input
        value={words}
        onValueChange={setWords}
        placeholder="Go to, search tasks, do…"
        className="h-11 w-full border-b bg-transparent px-4 text-[14px] outline-none"
      />
      <Command.List className="max-h-[55vh] overflow-y-auto p-1">
        <Command.Empty className="p-4 text-center text-[13px] text-soft">Nothing by that name.</Command.Empty>
        <Command.Group heading="Do" className={GROUP}>
          <Item
            icon={<CirclePlus className="size-4" aria-hidden />}
            run={act(() => navigate({ to: "/board", search: { new: true } }))}
          >
            New task
          </Item>
          <Item
            icon={<MessageSquarePlus className="size-4" aria-hidden />}
            run={act(() => navigate({ to: "/sessions", search: { new: true } }))}
          >
            New session
          </Item>
          <Item
            icon={<MoonStar className="size-4" aria-hidden />}
            run={act(() => choose(theme === "dark" ? "light" : "dark"))}
          >
            {theme === "dark" ? "Light colours" : "Dark colours"}
          </Item>
        </Command.Group>
        <Command.Group heading="Go to" className={GROUP}>
          {PLACES.filter((place) => !place.admin || own.data?.user.role === "admin").map((place) => (
            <Item
              key={place.to}
              icon={<place.icon className="size-4" aria-hidden />}
              run={act(() => navigate({ to: place.to }))}
            >
              {place.label}
            </Item>
          ))}
        </Command.Group>
        <Command.Group heading="Tasks" className={GROUP}>
          {cards.data?.map((task) => (
            <Item
              key={task.id}
              value={`${task.title} ${task.id}`}
              keywords={[words]} // the platform has found it: the words may be in its description
              icon={<SquareCheck className="size-4" aria-hidden />}
              run={act(() => navigate({ to: "/tasks/$taskId", params: { taskId: task.id } }))}
              note={COLUMNS[task.status].text}
            >
              {task.title}
            </Item>
          ))}
        </Command.Group>
        <Command.Group heading="Projects" className={GROUP}>
          {known.data?.map((project) => (
            <Item
              key={project.id}
              value={`${project.name} ${project.id}`}
              icon={<FolderGit2 className="size-4" aria-hidden />}
              run={act(() => navigate({ to: "/board", search: { project: project.id } }))}
              note="board"
            >
              {project.name}
            </Item>
          ))}
        </Command.Group>
      </Command.List>
    </Command.Dialog>
  );
}

function Item({
  icon,
  children,
  run,
  note,
  value,
  keywords,
}: {
  icon: ReactNode;
  children: ReactNode;
  run: () => void;
  note?: string;
  value?: string;
  keywords?: string[];
}) {
  return (
    <Command.Item onSelect={run} className={ITEM} {...(value ? { value } : {})} {...(keywords ? { keywords } : {})}>
      <span className="text-faint">{icon}</span>
      <span className="min-w-0 flex-1 truncate">{children}</span>
      {note && <span className="text-2xs text-faint">{note}</span>}
    </Command.Item>
  );
}
